//! Build script of the four executables: for Windows, compiles their version information and their manifest and links both.
//!
//! Explorer, installers and Windows' own inventory read the version information. What the manifest says stands in
//! `berth.manifest`. The resource compiler, windres, comes with the linker; Microsoft's toolchain has another one, which nobody
//! ships executables with: executables that it links have no resource.
#![expect(clippy::print_stdout, reason = "cargo reads it")]

use std::env::var;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let manifest = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../images/windows/berth.manifest");
    println!("cargo::rerun-if-changed={}", manifest.display());
    println!("cargo::rerun-if-changed=../images/windows/embed-resource.rs");
    if variable("CARGO_CFG_TARGET_OS") != "windows" || variable("CARGO_CFG_TARGET_ENV") != "gnu" {
        return;
    }
    let folder = PathBuf::from(variable("OUT_DIR"));
    // In this folder, so that no path of this machine is in the text.
    std::fs::copy(manifest, folder.join("berth.manifest")).expect("the manifest can be copied");
    std::fs::write(folder.join("berth.rc"), resource()).expect("OUT_DIR can be written to");
    let cross = variable("HOST") != variable("TARGET");
    let windres = if cross { "x86_64-w64-mingw32-windres" } else { "windres" };
    let ended = Command::new(windres).args(["berth.rc", "berth.o"]).current_dir(&folder).status();
    let ended =
        ended.unwrap_or_else(|error| panic!("{windres} is missing (Debian: binutils-mingw-w64-x86-64): {error}"));
    assert!(ended.success(), "{windres} failed");
    println!("cargo::rustc-link-arg-bins={}", folder.join("berth.o").display());
}

fn variable(name: &str) -> String {
    var(name).unwrap_or_else(|error| panic!("cargo sets {name}: {error}"))
}

/// The resources as windres reads them: version information (for language neutral, in Unicode) and the manifest (kind 24).
fn resource() -> String {
    let [name, version, description] =
        ["NAME", "VERSION", "DESCRIPTION"].map(|word| variable(&format!("CARGO_PKG_{word}")));
    let part = |word| variable(&format!("CARGO_PKG_VERSION_{word}"));
    let numbers = format!("{},{},{},0", part("MAJOR"), part("MINOR"), part("PATCH"));
    format!(
        r#"1 VERSIONINFO
FILEVERSION {numbers}
PRODUCTVERSION {numbers}
FILEFLAGSMASK 0x3f
FILEFLAGS 0
FILEOS 0x40004
FILETYPE 1
BEGIN
  BLOCK "StringFileInfo"
  BEGIN
    BLOCK "000004b0"
    BEGIN
      VALUE "CompanyName", "Berth"
      VALUE "FileDescription", "{description}"
      VALUE "FileVersion", "{version}"
      VALUE "InternalName", "{name}"
      VALUE "LegalCopyright", "Apache License 2.0"
      VALUE "OriginalFilename", "{name}.exe"
      VALUE "ProductName", "Berth"
      VALUE "ProductVersion", "{version}"
    END
  END
  BLOCK "VarFileInfo"
  BEGIN
    VALUE "Translation", 0, 1200
  END
END
1 24 "berth.manifest"
"#
    )
}
