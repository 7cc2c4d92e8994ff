#Requires -Version 5.1
#Requires -RunAsAdministrator
<#
.SYNOPSIS
Undoes what Install-Berth.ps1 did on this host, by the record that it wrote, and nothing else.

.DESCRIPTION
The steps are undone in the opposite order. What is gone already is passed over. What cannot be undone is told, the rest
goes on, and the record keeps what is left, so that this can be run again. The cluster file, the log and the last good
state stay in C:\ProgramData\Berth.

.EXAMPLE
.\Uninstall-Berth.ps1
#>
[CmdletBinding(SupportsShouldProcess, ConfirmImpact = 'Medium')]
param()

Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'

$recordPath = Join-Path (Join-Path $env:ProgramData 'Berth') 'installed.json'
if (-not (Test-Path -LiteralPath $recordPath)) {
    throw "There is no record of an installation ($recordPath), so there is nothing to undo."
}
$record = Get-Content -LiteralPath $recordPath -Raw -Encoding UTF8 | ConvertFrom-Json
if ($record.version -ne 1) { throw "$recordPath was written by another version (it says $($record.version), this script knows 1)." }
if (-not $PSCmdlet.ShouldProcess($env:COMPUTERNAME, 'Remove Berth')) { return }

function Undo-Step {
    param([Parameter(Mandatory)] $Step)
    switch ($Step.kind) {
        'service' {
            if (Get-Service -Name $Step.name -ErrorAction SilentlyContinue) {
                & $Step.program service uninstall --name $Step.name
                if ($LASTEXITCODE -ne 0) { throw "the service $($Step.name) stays" }
            }
        }
        'file' {
            if (Test-Path -LiteralPath $Step.path) { Remove-Item -LiteralPath $Step.path }
        }
        'folder' {
            # Only when nobody put something else there.
            if ((Test-Path -LiteralPath $Step.path) -and -not (Get-ChildItem -LiteralPath $Step.path -Force)) {
                Remove-Item -LiteralPath $Step.path
            }
        }
        'firewall' {
            Get-NetFirewallRule -Name $Step.name -ErrorAction SilentlyContinue | Remove-NetFirewallRule
        }
        'route' {
            Get-NetRoute -DestinationPrefix $Step.prefix -InterfaceIndex $Step.interfaceIndex -PolicyStore $Step.store -ErrorAction SilentlyContinue |
                Remove-NetRoute -Confirm:$false
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
$left = New-Object System.Collections.Generic.List[object]
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
    Remove-Item -LiteralPath $recordPath
    Write-Output 'Berth is removed.'
}
else {
    ConvertTo-Json -InputObject @{ version = 1; steps = $left.ToArray() } -Depth 5 |
        Set-Content -LiteralPath $recordPath -Encoding UTF8
    Write-Error "$($left.Count) steps could not be undone; what is left is in $recordPath. Run this again." -ErrorAction Continue
    exit 1
}
