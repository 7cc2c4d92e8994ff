#Requires -Version 5.1
#Requires -RunAsAdministrator
<#
.SYNOPSIS
Sets Berth up on this Windows host, and writes down everything it did so that Uninstall-Berth.ps1 can undo exactly that.

.DESCRIPTION
Without -Images, agent.exe becomes a Windows service that holds both addresses itself: nothing but the service, its
folder, two addresses while it runs, and three firewall rules.

With -Images the host is made ready for the three containers of compose.windows.yaml: a transparent network (unless
there is one of that name), routes for the two addresses on its adapter only, and the same firewall rules.

Nothing is overwritten: what is there already stays, is used, and is not removed by Uninstall-Berth.ps1.

Not yet run on a Windows host; docs/windows-verification.md tells what has to be seen.

.PARAMETER Executable
agent.exe, as images/build-windows made it.

.PARAMETER Cluster
The cluster file. It is used where it lies.

.PARAMETER Adapter
The adapter that gets the addresses (service) or that the transparent network is bound to (images).
Default: the one with the default route.

.PARAMETER Images
Prepare for containers instead of installing the service.

.PARAMETER Network
Name of the transparent network.

.PARAMETER MetadataAddress
Address of the metadata service. On AWS choose another one than 169.254.169.250.

.PARAMETER DnsAddress
Address of the DNS service. On AWS choose another one than 169.254.169.251.

.PARAMETER Force
Do not ask before taking addresses that something else on this host may use.

.EXAMPLE
.\Install-Berth.ps1 -Executable .\agent.exe -Cluster C:\ProgramData\Berth\cluster.yml

.EXAMPLE
.\Install-Berth.ps1 -Images -Adapter Ethernet
#>
[CmdletBinding(SupportsShouldProcess, ConfirmImpact = 'Medium', DefaultParameterSetName = 'Service')]
param(
    [Parameter(ParameterSetName = 'Service', Mandatory)] [string] $Executable,
    [Parameter(ParameterSetName = 'Service', Mandatory)] [string] $Cluster,
    [Parameter(ParameterSetName = 'Images', Mandatory)] [switch] $Images,
    [Parameter(ParameterSetName = 'Images')] [string] $Network = 'berth',
    [string] $Adapter,
    [ipaddress] $MetadataAddress = '169.254.169.250',
    [ipaddress] $DnsAddress = '169.254.169.251',
    [switch] $Force
)

Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'

$folder = Join-Path $env:ProgramData 'Berth'
$programs = Join-Path $env:ProgramFiles 'Berth'
$recordPath = Join-Path $folder 'installed.json'
$group = 'Berth'

if (Test-Path -LiteralPath $recordPath) {
    throw "Berth is set up here already ($recordPath). Run Uninstall-Berth.ps1 first."
}

# What was done so far, written after each step: a run that fails in its middle can be undone too.
$steps = New-Object System.Collections.Generic.List[object]
function Add-Step {
    param([Parameter(Mandatory)] [string] $Kind, [Parameter(Mandatory)] [hashtable] $Of)
    $Of['kind'] = $Kind
    $steps.Add([pscustomobject] $Of)
    ConvertTo-Json -InputObject @{ version = 1; steps = $steps.ToArray() } -Depth 5 |
        Set-Content -LiteralPath $recordPath -Encoding UTF8
}

# --- what could be taken from somebody else -------------------------------------------------------------------------

$system = Get-CimInstance -ClassName Win32_ComputerSystemProduct
$bios = Get-CimInstance -ClassName Win32_BIOS
$onAws = "$($system.Vendor) $($bios.SMBIOSBIOSVersion) $($bios.Manufacturer)" -match 'amazon'
$activation = @('169.254.169.250', '169.254.169.251')
$taken = @("$MetadataAddress", "$DnsAddress") | Where-Object { $activation -contains $_ }
if ($onAws -and $taken -and -not $Force) {
    $question = "This is a machine of AWS, where Windows is activated through $($activation -join ' and '). " +
        "Berth would take them while it runs; other ones can be given with -MetadataAddress and -DnsAddress."
    if (-not $PSCmdlet.ShouldContinue($question, 'Take the addresses of Windows activation?')) { return }
}

foreach ($address in @("$MetadataAddress", "$DnsAddress")) {
    $holder = Get-NetIPAddress -IPAddress $address -ErrorAction SilentlyContinue
    if ($holder) {
        throw "$address is on adapter '$($holder[0].InterfaceAlias)' already. Remove it there, or give another address."
    }
    $route = Get-NetRoute -DestinationPrefix "$address/32" -ErrorAction SilentlyContinue
    if ($route -and -not $Force) {
        $question = "Packets for $address go through adapter '$($route[0].InterfaceAlias)' on this host."
        if (-not $PSCmdlet.ShouldContinue($question, 'Use the address all the same?')) { return }
    }
}

if (-not $Adapter) {
    $default = Get-NetRoute -DestinationPrefix '0.0.0.0/0' -ErrorAction SilentlyContinue |
        Sort-Object -Property { $_.RouteMetric + $_.InterfaceMetric } | Select-Object -First 1
    if (-not $default) { throw 'No adapter has a default route: name the one to use with -Adapter.' }
    $Adapter = $default.InterfaceAlias
}
if (-not (Get-NetAdapter -Name $Adapter -ErrorAction SilentlyContinue)) {
    $names = (Get-NetAdapter).Name -join ', '
    throw "No adapter is called '$Adapter'; there are: $names"
}

# --- the steps ------------------------------------------------------------------------------------------------------

if (-not $PSCmdlet.ShouldProcess($env:COMPUTERNAME, 'Set up Berth')) { return }
$null = New-Item -ItemType Directory -Path $folder -Force

if ($Images) {
    $known = & docker network ls --format '{{.Name}}'
    if ($LASTEXITCODE -ne 0) { throw 'Docker does not answer: is its service running?' }
    if ($known -notcontains $Network) {
        $null = & docker network create --driver transparent --opt "com.docker.network.windowsshim.interface=$Adapter" $Network
        if ($LASTEXITCODE -ne 0) { throw "Docker made no network '$Network' on adapter '$Adapter'." }
        Add-Step -Kind 'network' -Of @{ name = $Network }
    }
    # The host itself reaches the containers' addresses through the network's own adapter, and nothing else does.
    $switch = Get-NetAdapter | Where-Object { $_.Name -like "vEthernet ($Adapter)*" } | Select-Object -First 1
    if (-not $switch) { $switch = Get-NetAdapter -Name $Adapter }
    foreach ($address in @("$MetadataAddress", "$DnsAddress")) {
        $null = New-NetRoute -DestinationPrefix "$address/32" -InterfaceIndex $switch.ifIndex -NextHop '0.0.0.0' -PolicyStore ActiveStore
        Add-Step -Kind 'route' -Of @{ prefix = "$address/32"; interfaceIndex = $switch.ifIndex; store = 'ActiveStore' }
        $null = New-NetRoute -DestinationPrefix "$address/32" -InterfaceIndex $switch.ifIndex -NextHop '0.0.0.0' -PolicyStore PersistentStore
        Add-Step -Kind 'route' -Of @{ prefix = "$address/32"; interfaceIndex = $switch.ifIndex; store = 'PersistentStore' }
    }
}

$rules = @(
    @{ Name = 'Berth-Metadata-TCP'; DisplayName = 'Berth metadata (HTTP)'; Protocol = 'TCP'; LocalPort = 80; LocalAddress = "$MetadataAddress" }
    @{ Name = 'Berth-DNS-UDP'; DisplayName = 'Berth DNS (UDP)'; Protocol = 'UDP'; LocalPort = 53; LocalAddress = "$DnsAddress" }
    @{ Name = 'Berth-DNS-TCP'; DisplayName = 'Berth DNS (TCP)'; Protocol = 'TCP'; LocalPort = 53; LocalAddress = "$DnsAddress" }
)
foreach ($rule in $rules) {
    if (Get-NetFirewallRule -Name $rule.Name -ErrorAction SilentlyContinue) { continue }
    $null = New-NetFirewallRule @rule -Group $group -Direction Inbound -Action Allow -Profile Any
    Add-Step -Kind 'firewall' -Of @{ name = $rule.Name }
}

if (-not $Images) {
    $source = (Resolve-Path -LiteralPath $Executable).Path
    $clusterPath = (Resolve-Path -LiteralPath $Cluster).Path
    $program = Join-Path $programs 'agent.exe'
    if (Test-Path -LiteralPath $program) { throw "There is a $program already, which this script did not put there." }
    if (-not (Test-Path -LiteralPath $programs)) {
        $null = New-Item -ItemType Directory -Path $programs
        Add-Step -Kind 'folder' -Of @{ path = $programs }
    }
    Copy-Item -LiteralPath $source -Destination $program
    Add-Step -Kind 'file' -Of @{ path = $program }
    & $program check $clusterPath
    if ($LASTEXITCODE -ne 0) { Write-Warning "$clusterPath has defects; what is wrong is left out, all else is served." }
    & $program service install -- $clusterPath --add-address --interface $Adapter `
        --metadata "${MetadataAddress}:80" --dns "${DnsAddress}:53"
    if ($LASTEXITCODE -ne 0) { throw 'The service was not installed; the line above says why.' }
    Add-Step -Kind 'service' -Of @{ name = 'berth'; program = $program }
    & $program service start
    if ($LASTEXITCODE -ne 0) { throw "The service does not run; its log is in $folder." }
}

Write-Output "Berth is set up; what was done is written in $recordPath."
Write-Output "Start containers with: docker run --dns $DnsAddress --dns-search rancher.internal ..."
