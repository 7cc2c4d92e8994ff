#Requires -Version 5.1
#Requires -RunAsAdministrator
<#
.SYNOPSIS
Undoes the steps that Install-Berth.ps1 recorded on this host, and nothing else.

.DESCRIPTION
The steps are undone in reverse order. What no longer exists is skipped. If a step cannot be undone, the script prints a warning
and continues; the record then contains the remaining steps, so that the script can be run again. The cluster file, the log and
the last good state stay in C:\ProgramData\Berth.

Not yet run on a real Windows host; docs/windows-verification.md lists what remains to be verified.

.EXAMPLE
.\Uninstall-Berth.ps1
#>
[CmdletBinding(SupportsShouldProcess, ConfirmImpact = 'Medium')]
param()

Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'

# Only administrators can write here: the record names the program to run and what to remove.
$programs = Join-Path $env:ProgramFiles 'Berth'
$recordPath = Join-Path $programs 'installed.json'
if (-not (Test-Path -LiteralPath $recordPath)) {
    throw "There is no record of an installation ($recordPath), so there is nothing to undo."
}
$record = Get-Content -LiteralPath $recordPath -Raw -Encoding UTF8 | ConvertFrom-Json
if ($record.version -ne 1) { throw "$recordPath was written by another version ($($record.version); this script supports 1)." }
if (-not $PSCmdlet.ShouldProcess($env:COMPUTERNAME, 'Remove Berth')) { return }

# The steps that could not be undone. Commands of modules do not see $ErrorActionPreference, so each one that changes
# something has -ErrorAction Stop.
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
                if ($LASTEXITCODE -ne 0) { throw "the service $($Step.name) could not be removed" }
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
            # Only if it contains nothing else.
            if (-not (Test-Path -LiteralPath $Step.path)) { return }
            $content = @(Get-ChildItem -LiteralPath $Step.path -Force | Where-Object { $_.FullName -ne $recordPath })
            if ($content.Count -gt 0) { return }
            if ($Step.path -eq $programs) {
                # The first step, so the last to be undone; the record is removed with its folder when it is no longer needed.
                if ($left.Count -gt 0) { throw "$programs stays, because it contains the record of the remaining steps" }
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
        default { throw "the step has an unknown kind: $($Step.kind)" }
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
    Write-Error "$($left.Count) steps could not be undone; they are in $recordPath. Run this script again." -ErrorAction Continue
    exit 1
}
