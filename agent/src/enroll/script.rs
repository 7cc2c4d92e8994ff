//! `agent invite --script`: a script that installs Berth on a host and lets it join.
//!
//! The package's SHA-256 stands in the script, so the server that the package comes from is not trusted. Both scripts can be
//! run as a file or be pasted: a shell of its own reads the one, a block is the other, so that an error ends them and not
//! the terminal.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use model::hex;
use process::Failure;
use ring::digest::{SHA256, digest};

use super::outcome::named;

/// What is read from standard input or pasted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    /// For Linux with systemd, as root
    Sh,
    /// For Windows, as administrator (Windows PowerShell 5.1 or newer)
    Powershell,
}

/// The script of one command.
#[derive(clap::Args)]
pub(crate) struct ScriptOptions {
    /// Write a script to --out that lets the host join, and installs Berth before if --package is given
    ///
    /// It holds the invitation, so it is as much a secret.
    #[arg(long, value_enum, value_name = "SHELL", requires = "out")]
    script: Option<Shell>,

    /// The package that the script installs: a .deb or .tar.gz for sh, an .msi for PowerShell
    ///
    /// Its SHA-256 is written into the script, which installs nothing else.
    #[arg(long, value_name = "FILE", requires = "script", requires = "from")]
    package: Option<PathBuf>,

    /// Where the host downloads the package; a URL that ends with / is the folder that it is in
    #[arg(long, value_name = "URL", requires = "package", value_parser = location)]
    from: Option<String>,
}

/// A script that lacks the host and its invitation.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    shell: Shell,
    package: Option<Package>,
}

/// What is downloaded and installed.
#[derive(Clone, Debug)]
struct Package {
    name: String,
    url: String,
    sha256: String,
}

impl ScriptOptions {
    /// The script that is wanted, if one is.
    ///
    /// # Errors
    ///
    /// Fails if the package cannot be read, or not be installed by this shell.
    pub(crate) fn script(&self) -> Result<Option<Script>, Failure> {
        let Some(shell) = self.script else { return Ok(None) };
        let package = self.package.as_deref().zip(self.from.as_deref());
        let package = package.map(|(path, from)| Package::of(path, from, shell)).transpose()?;
        Ok(Some(Script { shell, package }))
    }
}

impl Package {
    fn of(path: &Path, from: &str, shell: Shell) -> Result<Self, Failure> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let endings = shell.packages();
        let plain = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._+-~".contains(&byte));
        if !plain(name) || !endings.iter().any(|ending| name.ends_with(ending)) {
            return Err(format!("{}: expected the name of a {} package", path.display(), endings.join(" or ")).into());
        }
        let url = if from.ends_with('/') { format!("{from}{name}") } else { from.to_owned() };
        let content = std::fs::read(path).map_err(named(path))?;
        Ok(Self { name: name.to_owned(), url, sha256: hex(digest(&SHA256, &content).as_ref()) })
    }
}

impl Shell {
    /// How the names of packages end that it can install.
    fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Sh => &[".deb", ".tar.gz"],
            Self::Powershell => &[".msi"],
        }
    }
}

impl Script {
    /// How the name of its file ends.
    pub(crate) fn ending(&self) -> &'static str {
        match self.shell {
            Shell::Sh => "sh",
            Shell::Powershell => "ps1",
        }
    }

    /// What is typed to run it.
    pub(crate) fn line(&self, file: &str) -> String {
        match self.shell {
            Shell::Sh => format!("sh {file}"),
            Shell::Powershell => format!("powershell -ExecutionPolicy Bypass -File {file}"),
        }
    }

    /// Its text for a host: `invitation` is what the file of an invitation holds.
    pub(crate) fn text(&self, host: &str, until: &str, invitation: &str) -> String {
        let what =
            if self.package.is_some() { "Installs Berth on this host and lets it join" } else { "Lets this host join" };
        let head = format!(
            "# {what} as {host}, with an invitation that is good for one use until {until}.\n\
             # It is a secret until then. Run or paste it as root or administrator.\n"
        );
        match self.shell {
            Shell::Sh => format!("#!/bin/sh\n{head}{}", self.sh(invitation)),
            Shell::Powershell => format!("{head}{}", self.powershell(invitation)).replace('\n', "\r\n"),
        }
    }

    fn sh(&self, invitation: &str) -> String {
        let install = self.package.as_ref().map(|Package { name, url, sha256 }| {
            // Its own messages are for those who install by hand.
            let install = if name.strip_suffix(".deb").is_some() {
                format!("dpkg -i '{name}' </dev/null >/dev/null")
            } else {
                format!("mkdir package\ntar -xzf '{name}' -C package --strip-components=1\n./package/install </dev/null >/dev/null")
            };
            format!(
                "echo 'downloading {url}'\n\
                 if command -v curl >/dev/null; then curl -fsSL -o '{name}' '{url}' </dev/null; else wget -q -O '{name}' '{url}'; fi\n\
                 echo '{sha256}  {name}' | sha256sum -c --status - ||\n    \
                 fail 'what {url} gives is not the package that was meant: another SHA-256'\n\
                 echo 'installing {name}'\n{install}\n"
            )
        });
        format!(
            "sh -eu <<'BERTH'\n\
             fail() {{ echo \"error: $1\" >&2; exit 1; }}\n\
             [ \"$(id -u)\" = 0 ] || fail 'this has to run as root'\n\
             folder=$(mktemp -d)\n\
             trap 'rm -rf \"$folder\"' EXIT\n\
             trap 'exit 1' HUP INT TERM\n\
             cd \"$folder\"\n\
             {}\
             command -v agent >/dev/null || fail 'Berth is not installed: install one of its packages first'\n\
             cat >invitation <<'INVITATION'\n\
             {invitation}\
             INVITATION\n\
             # An agent that runs already is to serve with the new settings.\n\
             systemctl stop berth 2>/dev/null || true\n\
             agent join --file invitation </dev/null\n\
             BERTH\n",
            install.unwrap_or_default()
        )
    }

    fn powershell(&self, invitation: &str) -> String {
        let install = self.package.as_ref().map(|Package { name, url, sha256 }| {
            format!(
                "        $package = Join-Path $folder '{name}'\n        \
                 Write-Host 'downloading {url}'\n        \
                 $tls = [Net.ServicePointManager]::SecurityProtocol\n        \
                 [Net.ServicePointManager]::SecurityProtocol = $tls -bor [Net.SecurityProtocolType]::Tls12\n        \
                 Invoke-WebRequest -UseBasicParsing -Uri '{url}' -OutFile $package\n        \
                 if ((Get-FileHash -Algorithm SHA256 $package).Hash -ne '{sha256}') {{\n            \
                 throw 'what {url} gives is not the package that was meant: another SHA-256'\n        \
                 }}\n        \
                 Write-Host 'installing {name}'\n        \
                 $words = @('/i', ('\"' + $package + '\"'), '/qn', '/norestart')\n        \
                 $installed = Start-Process msiexec.exe -ArgumentList $words -Wait -PassThru\n        \
                 if (@(0, 3010) -notcontains $installed.ExitCode) {{ throw ('msiexec ended with ' + $installed.ExitCode) }}\n"
            )
        });
        format!(
            "& {{\n    \
             $ErrorActionPreference = 'Stop'\n    \
             $ProgressPreference = 'SilentlyContinue'\n    \
             $user = [Security.Principal.WindowsPrincipal][Security.Principal.WindowsIdentity]::GetCurrent()\n    \
             if (-not $user.IsInRole([Security.Principal.WindowsBuiltInRole]::Administrator)) {{\n        \
             throw 'this has to run as administrator'\n    \
             }}\n    \
             $folder = Join-Path ([IO.Path]::GetTempPath()) ([Guid]::NewGuid())\n    \
             New-Item -ItemType Directory $folder | Out-Null\n    \
             try {{\n        \
             # Only administrators and the system may read the invitation.\n        \
             icacls $folder /inheritance:r /grant '*S-1-5-18:(OI)(CI)F' '*S-1-5-32-544:(OI)(CI)F' | Out-Null\n\
             {}        \
             $agent = Join-Path $env:ProgramFiles 'Berth\\agent.exe'\n        \
             if (-not (Test-Path $agent)) {{ throw 'Berth is not installed: install its package first' }}\n        \
             $file = Join-Path $folder 'invitation'\n        \
             Set-Content -Encoding Ascii -Path $file -Value @'\n\
             {invitation}\
             '@\n        \
             # An agent that runs already is to serve with the new settings.\n        \
             Stop-Service berth -ErrorAction SilentlyContinue\n        \
             & $agent join --file $file\n        \
             if ($LASTEXITCODE -ne 0) {{ throw ('agent join ended with ' + $LASTEXITCODE) }}\n    \
             }} finally {{\n        \
             Remove-Item -Recurse -Force $folder\n    \
             }}\n\
             }}\n",
            install.unwrap_or_default()
        )
    }
}

/// A URL that both shells take as it is within single quotes.
fn location(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or_default();
    let plain = rest.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\'');
    if plain && rest.contains('/') && !rest.starts_with('/') {
        Ok(text.to_owned())
    } else {
        Err("expected a URL with http:// or https:// and a path, without quotes and spaces".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INVITATION: &str = "# an invitation\nberth1.0a.x.y@192.0.2.1:2379\n";

    #[test]
    fn urls_stand_in_quotes() {
        for (text, is_one) in [
            ("https://files.example/berth/", true),
            ("http://192.0.2.1:8080/berth.deb?x=$1", true),
            ("https://files.example", false),
            ("https:///berth.deb", false),
            ("ftp://files.example/berth/", false),
            ("https://files.example/'; rm -r /; '", false),
            ("https://files.example/a b", false),
            ("", false),
        ] {
            assert_eq!(location(text).is_ok(), is_one, "{text}");
        }
    }

    #[test]
    fn a_package_is_for_its_shell_and_named_plainly() {
        let folder = tempfile::tempdir().unwrap();
        for (name, shell, is_one) in [
            ("berth_0.1.0_amd64.deb", Shell::Sh, true),
            ("berth-0.1.0.tar.gz", Shell::Sh, true),
            ("berth-0.1.0.msi", Shell::Sh, false),
            ("berth-0.1.0.msi", Shell::Powershell, true),
            ("berth.deb", Shell::Powershell, false),
            ("it's.deb", Shell::Sh, false),
            ("a b.msi", Shell::Powershell, false),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, "abc").unwrap();
            let package = Package::of(&path, "https://files.example/", shell);
            assert_eq!(package.is_ok(), is_one, "{name}");
            if let Ok(package) = package {
                assert_eq!(package.url, format!("https://files.example/{name}"));
                // FIPS 180-4 has this example.
                assert!(package.sha256.starts_with("ba7816bf8f01cfea"), "{}", package.sha256);
            }
        }
        let error = Package::of(&folder.path().join("none.deb"), "https://files.example/", Shell::Sh).unwrap_err();
        assert!(error.to_string().contains("none.deb"), "{error}");
    }

    /// PowerShell itself runs on Windows alone; these are the errors that pasting makes likely.
    #[test]
    fn the_script_for_powershell_survives_pasting() {
        let package =
            Package { name: "berth.msi".into(), url: "https://files.example/berth.msi".into(), sha256: "0a".into() };
        for package in [None, Some(package)] {
            let text = Script { shell: Shell::Powershell, package }.text("win-5", "2030-01-01T00:00:00Z", INVITATION);
            assert!(text.is_ascii());
            assert!(text.lines().all(|line| text.contains(&format!("{line}\r\n")) && !line.contains('\t')), "{text}");
            // The text of the invitation begins a line, and so does its end.
            let (before, rest) = text.split_once("@'\r\n").unwrap();
            let (invitation, after) = rest.split_once("\r\n'@\r\n").unwrap();
            assert_eq!(format!("{}\n", invitation.replace("\r\n", "\n")), INVITATION);
            let code = format!("{before}{after}");
            for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
                let count = |what: char| code.chars().filter(|character| *character == what).count();
                assert_eq!(count(open), count(close), "{code}");
            }
            assert!(code.lines().all(|line| line.starts_with('#') || line.matches('\'').count() % 2 == 0), "{code}");
        }
    }
}
