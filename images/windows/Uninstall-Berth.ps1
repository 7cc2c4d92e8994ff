#Requires -Version 5.1
#Requires -RunAsAdministrator
<#
.SYNOPSIS
Undoes what Install-Berth.ps1 did on this host, by the record that it wrote, and nothing else.

.DESCRIPTION
The steps are undone in the opposite order. What is gone already is passed over. What cannot be undone is told, the rest
goes on, and the record keeps what is left, so that this can be run again. The cluster file, the log and the last good
state stay in C:\ProgramData\Berth.

Not yet run on a Windows host; docs/windows-verification.md tells what has to be seen.

.EXAMPLE
.\Uninstall-Berth.ps1
#>
[CmdletBinding(SupportsShouldProcess, ConfirmImpact = 'Medium')]
param()

Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'

# Where only administrators write: it says which program to run and what to remove.
$programs = Join-Path $env:ProgramFiles 'Berth'
$recordPath = Join-Path $programs 'installed.json'
if (-not (Test-Path -LiteralPath $recordPath)) {
    throw "There is no record of an installation ($recordPath), so there is nothing to undo."
}
$record = Get-Content -LiteralPath $recordPath -Raw -Encoding UTF8 | ConvertFrom-Json
if ($record.version -ne 1) { throw "$recordPath was written by another version (it says $($record.version), this script knows 1)." }
if (-not $PSCmdlet.ShouldProcess($env:COMPUTERNAME, 'Remove Berth')) { return }

# What is left to be undone another time. Commands of modules do not hear of $ErrorActionPreference: those that change
# something are told by themselves.
$left = [System.Collections.Generic.List[object]]::new()

function Undo-Step {
    param([Parameter(Mandatory)] $Step)
    switch ($Step.kind) {
        'service' {
            if (Get-Service -Name $Step.name -ErrorAction SilentlyContinue) {
                if (Test-Path -LiteralPath $Step.program) {
                    & $Step.program service uninstall --name $Step.name
                }
                else {
                    Stop-Service -Name $Step.name -Force
                    $null = & sc.exe delete $Step.name
                }
                if ($LASTEXITCODE -ne 0) { throw "the service $($Step.name) stays" }
            }
        }
        'file' {
            # A service that has stopped may still hold its program for a moment.
            for ($turn = 0; Test-Path -LiteralPath $Step.path; $turn++) {
                try { Remove-Item -LiteralPath $Step.path }
                catch {
                    if ($turn -ge 20) { throw }
                    Start-Sleep -Milliseconds 250
                }
            }
        }
        'folder' {
            # Only when nobody put something else there.
            if (-not (Test-Path -LiteralPath $Step.path)) { return }
            $content = @(Get-ChildItem -LiteralPath $Step.path -Force | Where-Object { $_.FullName -ne $recordPath })
            if ($content.Count -gt 0) { return }
            if ($Step.path -eq $programs) {
                # The first step, so the last to be undone; the record goes with its folder when it is needed no more.
                if ($left.Count -gt 0) { throw "$programs stays for the record of what is left" }
                Remove-Item -LiteralPath $recordPath
            }
            Remove-Item -LiteralPath $Step.path
        }
        'firewall' {
            Get-NetFirewallRule -Name $Step.name -ErrorAction SilentlyContinue |
                Remove-NetFirewallRule -ErrorAction Stop
        }
        'route' {
            Get-NetRoute -DestinationPrefix $Step.prefix -PolicyStore $Step.store -ErrorAction SilentlyContinue |
                Where-Object { $_.InterfaceAlias -eq $Step.adapter -and $_.NextHop -eq $Step.nextHop } |
                Remove-NetRoute -Confirm:$false -ErrorAction Stop
        }
        'network' {
            $known = & docker network ls --format '{{.Name}}'
            if ($LASTEXITCODE -ne 0) { throw 'Docker does not answer' }
            if ($known -contains $Step.name) {
                $null = & docker network rm $Step.name
                if ($LASTEXITCODE -ne 0) { throw "the network $($Step.name) is still used by containers" }
            }
        }
        default { throw "a step of the unknown kind $($Step.kind)" }
    }
}

$steps = @($record.steps)
for ($index = $steps.Count - 1; $index -ge 0; $index--) {
    try {
        Undo-Step -Step $steps[$index]
    }
    catch {
        Write-Warning "Not undone: $($_.Exception.Message)"
        $left.Insert(0, $steps[$index])
    }
}

if ($left.Count -eq 0) {
    if (Test-Path -LiteralPath $recordPath) { Remove-Item -LiteralPath $recordPath }
    Write-Output 'Berth is removed.'
}
else {
    ConvertTo-Json -InputObject @{ version = 1; steps = $left.ToArray() } -Depth 5 |
        Set-Content -LiteralPath $recordPath -Encoding UTF8
    Write-Error "$($left.Count) steps could not be undone; what is left is in $recordPath. Run this again." -ErrorAction Continue
    exit 1
}
