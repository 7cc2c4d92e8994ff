#Requires -Version 5.1
#Requires -RunAsAdministrator
<#
.SYNOPSIS
Sets up Berth on this Windows host, and records every step so that Uninstall-Berth.ps1 can undo exactly these steps.

.DESCRIPTION
Without -Images, agent.exe becomes a Windows service that holds both addresses itself. This adds only the service, its
folders, two addresses while the service runs, and three firewall rules.

With -Images, the script prepares the host for the three containers of compose.windows.yaml: a transparent network (unless
a network of that name exists), routes for the two addresses on its adapter only, and the same firewall rules.

If this script has already installed the service, it replaces agent.exe, restarts the service, and changes nothing else. If the
new agent.exe does not start, the script restores the old one.

Nothing else is overwritten. What already exists stays and is used, and Uninstall-Berth.ps1 does not remove it. The record is
installed.json in the program folder, where only administrators can write, because Uninstall-Berth.ps1 runs as administrator.

Not yet run on a real Windows host; docs/windows-verification.md lists what remains to be verified.

.PARAMETER Executable
agent.exe, as built by images/build-windows.

.PARAMETER Cluster
The cluster file. It is not copied, and must be on a disk of this host: the service cannot use your shares and mapped drives.

.PARAMETER Adapter
The adapter that gets the addresses (service) or that the transparent network is bound to (images).
Default: the one with the default route.

.PARAMETER Images
Prepares the host for containers instead of installing the service.

.PARAMETER Network
The name of the transparent network.

.PARAMETER MetadataAddress
The address of the metadata service. On AWS, choose an address other than 169.254.169.250.

.PARAMETER DnsAddress
The address of the DNS service. On AWS, choose an address other than 169.254.169.251.

.PARAMETER Force
Does not ask before using addresses that something else on this host may use.

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
$program = Join-Path $programs 'agent.exe'
$recordPath = Join-Path $programs 'installed.json'
$group = 'Berth'
$addresses = @("$MetadataAddress", "$DnsAddress")

# --- requirements, checked before anything is changed ----------------------------------------------------------------

if (Test-Path -LiteralPath $recordPath) {
    $record = Get-Content -LiteralPath $recordPath -Raw | ConvertFrom-Json
    if ($Images -or -not ($record.steps | Where-Object { $_.kind -eq 'service' })) {
        throw "Berth is already set up on this host ($recordPath). Run Uninstall-Berth.ps1 first."
    }
    if (-not (Test-Path -LiteralPath $Executable -PathType Leaf)) { throw "There is no file $Executable." }
    if (-not $PSCmdlet.ShouldProcess($program, 'Replace the executable of the service berth')) { return }
    $former = "$program.former"
    & $program service stop
    if ($LASTEXITCODE -ne 0) { throw 'The service does not stop; nothing was changed.' }
    Move-Item -LiteralPath $program -Destination $former -Force
    Copy-Item -LiteralPath $Executable -Destination $program
    & $program service start
    if ($LASTEXITCODE -ne 0) {
        Move-Item -LiteralPath $former -Destination $program -Force
        & $program service start
        throw 'The new agent.exe does not run; the line above says why. The former one was restored.'
    }
    Remove-Item -LiteralPath $former
    Write-Output "$program is replaced and the service runs."
    return
}
if ($Images) {
    if (-not (Get-Command -Name docker -ErrorAction SilentlyContinue)) {
        throw 'There is no docker command on this host. Install the Docker Engine, or use -Executable instead of -Images.'
    }
    $networks = & docker network ls --format '{{.Name}}'
    if ($LASTEXITCODE -ne 0) { throw 'Docker does not answer: is its service running?' }
}
else {
    foreach ($path in @($Executable, $Cluster)) {
        if (-not (Test-Path -LiteralPath $path -PathType Leaf)) { throw "There is no file $path." }
    }
    $source = (Resolve-Path -LiteralPath $Executable).ProviderPath
    $clusterPath = (Resolve-Path -LiteralPath $Cluster).ProviderPath
    # The service runs as LocalSystem, which has neither the rights nor the drives of the user who installs it.
    if ($clusterPath.StartsWith('\\') -or ([System.IO.DriveInfo] $clusterPath.Substring(0, 1)).DriveType -eq 'Network') {
        throw "$clusterPath is not on a disk of this host, where the service could read it. Copy it to $folder."
    }
    if (Get-Service -Name 'berth' -ErrorAction SilentlyContinue) {
        throw "A service berth already exists, which this script did not install. Remove it with: agent service uninstall"
    }
    if (Test-Path -LiteralPath $program) { throw "$program already exists, and this script did not create it." }
}

if (-not $Adapter) {
    $default = Get-NetRoute -DestinationPrefix '0.0.0.0/0' -ErrorAction SilentlyContinue |
        Sort-Object -Property { $_.RouteMetric + $_.InterfaceMetric } | Select-Object -First 1
    if (-not $default) { throw 'No adapter has a default route: name the one to use with -Adapter.' }
    $Adapter = $default.InterfaceAlias
}
# Compared here, because -Name treats brackets in a name as a pattern.
$adapters = @(Get-NetAdapter)
if (-not ($adapters | Where-Object { $_.Name -eq $Adapter })) {
    $names = ($adapters | ForEach-Object { $_.Name }) -join ', '
    throw "There is no adapter '$Adapter'; the adapters are: $names"
}

# --- addresses that something else may use ---------------------------------------------------------------------------

$system = Get-CimInstance -ClassName Win32_ComputerSystemProduct
$bios = Get-CimInstance -ClassName Win32_BIOS
$onAws = "$($system.Vendor) $($bios.SMBIOSBIOSVersion) $($bios.Manufacturer)" -match 'amazon'
$activation = @('169.254.169.250', '169.254.169.251')
$taken = $addresses | Where-Object { $activation -contains $_ }
if ($onAws -and $taken -and -not $Force) {
    $question = "This is an AWS instance, where Windows activation uses $($activation -join ' and '). " +
        "Berth would use them while it runs; choose others with -MetadataAddress and -DnsAddress."
    if (-not $PSCmdlet.ShouldContinue($question, 'Use the addresses of Windows activation?')) {
        Write-Warning 'Nothing was changed.'
        return
    }
}

foreach ($address in $addresses) {
    $holder = Get-NetIPAddress -IPAddress $address -ErrorAction SilentlyContinue | Select-Object -First 1
    if ($holder) {
        throw "$address is already on adapter '$($holder.InterfaceAlias)'. Remove it there, or choose another address."
    }
    $route = Get-NetRoute -DestinationPrefix "$address/32" -ErrorAction SilentlyContinue | Select-Object -First 1
    if ($route -and -not $Force) {
        $question = "Packets for $address go through adapter '$($route.InterfaceAlias)' on this host."
        if (-not $PSCmdlet.ShouldContinue($question, 'Use the address anyway?')) {
            Write-Warning 'Nothing was changed.'
            return
        }
    }
}

# --- the steps ------------------------------------------------------------------------------------------------------

# Commands of modules do not see $ErrorActionPreference, so each one that changes something has -ErrorAction Stop.
if (-not $PSCmdlet.ShouldProcess($env:COMPUTERNAME, 'Set up Berth')) { return }

# The steps so far, written after each step, so that an incomplete run can be undone too.
$steps = [System.Collections.Generic.List[object]]::new()
function Add-Step {
    param([Parameter(Mandatory)] [string] $Kind, [Parameter(Mandatory)] [hashtable] $Of)
    $Of['kind'] = $Kind
    $steps.Add([pscustomobject] $Of)
    ConvertTo-Json -InputObject @{ version = 1; steps = $steps.ToArray() } -Depth 5 |
        Set-Content -LiteralPath $recordPath -Encoding UTF8
}

# First, because the record is in this folder.
if (-not (Test-Path -LiteralPath $programs)) {
    $null = New-Item -ItemType Directory -Path $programs
    Add-Step -Kind 'folder' -Of @{ path = $programs }
}

# Below ProgramData, every user may create files, and files in this folder are served. The groups (SYSTEM, Administrators,
# Users) are given by number, because their names depend on the language of Windows.
$closed = @('/inheritance:r', '/grant:r', '*S-1-5-18:(OI)(CI)F', '*S-1-5-32-544:(OI)(CI)F', '*S-1-5-32-545:(OI)(CI)RX')
if (-not (Test-Path -LiteralPath $folder)) {
    $null = New-Item -ItemType Directory -Path $folder
    Add-Step -Kind 'folder' -Of @{ path = $folder }
    $null = & icacls.exe $folder $closed
    if ($LASTEXITCODE -ne 0) { throw "The rights of $folder could not be set." }
}
else {
    $users = (Get-Acl -LiteralPath $folder).GetAccessRules($true, $true, [System.Security.Principal.SecurityIdentifier]) |
        Where-Object { $_.IdentityReference.Value -eq 'S-1-5-32-545' -and $_.AccessControlType -eq 'Allow' -and
            ($_.FileSystemRights -band [System.Security.AccessControl.FileSystemRights]::CreateFiles) }
    if ($users) {
        Write-Warning ("Every user of this host may create files in $folder, and files there are served. " +
            "Prevent this with: icacls `"$folder`" $(($closed | ForEach-Object { "`"$_`"" }) -join ' ')")
    }
}

if ($Images) {
    if ($networks -notcontains $Network) {
        $null = & docker network create --driver transparent --opt "com.docker.network.windowsshim.interface=$Adapter" $Network
        if ($LASTEXITCODE -ne 0) {
            throw "Docker could not create the network '$Network' on adapter '$Adapter': it must be a physical one without a switch."
        }
        Add-Step -Kind 'network' -Of @{ name = $Network }
    }
    # The switch gives the host a separate adapter, which takes over the addresses of the physical one after a moment.
    # Only through this adapter does the host reach the containers' addresses.
    $onSwitch = $null
    for ($turn = 0; $turn -lt 20 -and -not $onSwitch; $turn++) {
        if ($turn -gt 0) { Start-Sleep -Milliseconds 500 }
        $onSwitch = Get-NetAdapter | Where-Object { $_.Name.StartsWith("vEthernet ($Adapter)", 'OrdinalIgnoreCase') } |
            Select-Object -First 1
    }
    if (-not $onSwitch) { $onSwitch = Get-NetAdapter | Where-Object { $_.Name -eq $Adapter } | Select-Object -First 1 }
    foreach ($address in $addresses) {
        foreach ($store in @('ActiveStore', 'PersistentStore')) {
            # By name, because the numbers of adapters change at the next start.
            $there = Get-NetRoute -DestinationPrefix "$address/32" -PolicyStore $store -ErrorAction SilentlyContinue |
                Where-Object { $_.InterfaceAlias -eq $onSwitch.Name }
            if ($there) { continue }
            $null = New-NetRoute -DestinationPrefix "$address/32" -InterfaceIndex $onSwitch.ifIndex -NextHop '0.0.0.0' `
                -PolicyStore $store -ErrorAction Stop
            Add-Step -Kind 'route' -Of @{ prefix = "$address/32"; adapter = $onSwitch.Name; nextHop = '0.0.0.0'; store = $store }
        }
    }
}

$rules = @(
    @{ Name = 'Berth-Metadata-TCP'; DisplayName = 'Berth metadata (HTTP)'; Protocol = 'TCP'; LocalPort = 80; LocalAddress = "$MetadataAddress" }
    @{ Name = 'Berth-DNS-UDP'; DisplayName = 'Berth DNS (UDP)'; Protocol = 'UDP'; LocalPort = 53; LocalAddress = "$DnsAddress" }
    @{ Name = 'Berth-DNS-TCP'; DisplayName = 'Berth DNS (TCP)'; Protocol = 'TCP'; LocalPort = 53; LocalAddress = "$DnsAddress" }
)
foreach ($rule in $rules) {
    $there = Get-NetFirewallRule -Name $rule.Name -ErrorAction SilentlyContinue
    if ($there) {
        $open = ($there | Get-NetFirewallAddressFilter).LocalAddress
        if ($open -ne $rule.LocalAddress) {
            Write-Warning ("The firewall rule $($rule.Name) already existed, for $open and not for $($rule.LocalAddress): " +
                "remove it with Remove-NetFirewallRule -Name $($rule.Name) and run this again.")
        }
        continue
    }
    $null = New-NetFirewallRule @rule -Group $group -Direction Inbound -Action Allow -Profile Any -ErrorAction Stop
    Add-Step -Kind 'firewall' -Of @{ name = $rule.Name }
}

$networkOption = ''
if ($Images) {
    $networkOption = "--network $Network "
    if ($addresses[0] -ne '169.254.169.250' -or $addresses[1] -ne '169.254.169.251') {
        Write-Output 'Before docker compose, set the addresses of the containers:'
        Write-Output "  `$env:BERTH_METADATA_ADDRESS = '$MetadataAddress'; `$env:BERTH_DNS_ADDRESS = '$DnsAddress'"
    }
}
else {
    Copy-Item -LiteralPath $source -Destination $program
    Add-Step -Kind 'file' -Of @{ path = $program }
    & $program check $clusterPath
    if ($LASTEXITCODE -ne 0) {
        Write-Warning "$clusterPath has defects; invalid entries are left out, everything else is served."
    }
    # The service starts in the folder where it was installed, so this must be a folder that stays.
    Push-Location -LiteralPath $folder
    try {
        & $program service install -- $clusterPath --add-address --interface $Adapter `
            --metadata "${MetadataAddress}:80" --dns "${DnsAddress}:53" `
            --rancher-metadata-answer $MetadataAddress --container-dns $DnsAddress
    }
    finally {
        Pop-Location
    }
    if ($LASTEXITCODE -ne 0) { throw 'The service was not installed; the line above says why.' }
    Add-Step -Kind 'service' -Of @{ name = 'berth'; program = $program }
    & $program service start
    if ($LASTEXITCODE -ne 0) { throw 'The service does not run; the line above says why.' }
}

Write-Output "Berth is set up; the steps are recorded in $recordPath."
Write-Output "Start containers with: docker run ${networkOption}--dns $DnsAddress --dns-search rancher.internal ..."
