// Lists the names that the texts behind docs/coverage.md have, by the page's heading. Names of one line stand in one row.

export const requiredNames: Record<string, string> = {
  "Calls: statistics and events": `
    timestamp swap_available_bytes swap_usage_bytes
    CONTAINER_CREATED_EVENT CONTAINER_STARTED_EVENT CONTAINER_STOPPED_EVENT CONTAINER_DELETED_EVENT`,
  "Network namespaces and CNI": `
    SandboxID
    SandboxKey
    Activation
    IPAddress
    IPPrefixLen
    Gateway
    GlobalIPv6Address
    GlobalIPv6PrefixLen
    IPv6Gateway
    MacAddress
    Bridge
    Ports
    CNIPorts
    EndpointID
    Networks
    LinkLocalIPv6Address
    LinkLocalIPv6PrefixLen`,
  "NRI: plugins, events and configuration": `
    disable_connections
    plugin_config_path
    plugin_registration_timeout
    plugin_request_timeout plugin_requst_timeout
    RunPodSandbox StopPodSandbox RemovePodSandbox
    CreateContainer PostCreateContainer StartContainer PostStartContainer StopContainer RemoveContainer
    UpdateContainer PostUpdateContainer
    Synchronize
    UpdateContainers
    ContainerEviction`,
  "NRI: what plugins see and change": `
    PodSandbox id name uid namespace labels annotations runtime_handler linux pid
    LinuxPodSandbox pod_overhead pod_resources cgroup_parent cgroups_path namespaces resources
    Container id pod_sandbox_id name state labels annotations args env mounts hooks linux pid rlimits
    ContainerAdjustment annotations mounts env hooks linux rlimits
    Mount destination type source options
    Hooks create_runtime create_container start_container
    LinuxContainerAdjustment devices resources cgroups_path
    LinuxResources memory cpu hugepage_limits unified devices
    blockio_class
    rdt_class
    LinuxMemory limit reservation swap kernel kernel_tcp swappiness disable_oom_killer use_hierarchy
    LinuxCPU shares quota period realtime_runtime realtime_period cpus mems
    HugepageLimit page_size limit
    POSIXRlimit type hard soft
    LinuxNamespace type path`,
  "iSulad's configuration": `
    group
    default-runtime
    graph
    state
    log-level
    pidfile`,
  "The daemon": `
    version
    root
    state
    temp
    plugin_dir
    disabled_plugins required_plugins
    oom_score
    imports
    grpc.address
    grpc.uid
    grpc.gid
    grpc.max_recv_message_size grpc.max_send_message_size
    grpc.tcp_address grpc.tcp_tls_ca grpc.tcp_tls_cert grpc.tcp_tls_key
    ttrpc.address ttrpc.uid ttrpc.gid
    debug.address debug.uid debug.gid
    debug.level
    debug.format
    metrics.address
    metrics.grpc_histogram
    cgroup.path
    timeouts.bolt.open
    timeouts.metrics.shimstats timeouts.shim.cleanup timeouts.shim.load
    timeouts.shim.shutdown timeouts.task.state
    stream_processors accepts returns path args env`,
  "Images (io.containerd.cri.v1.images)": `
    snapshotter
    disable_snapshot_annotations
    discard_unpacked_layers
    max_concurrent_downloads
    image_pull_progress_timeout
    image_pull_with_sync_fs
    stats_collect_period
    pinned_images.sandbox
    registry.config_path
    registry.mirrors registry.configs
    image_decryption.key_model`,
  "Containers (io.containerd.cri.v1.runtime)": `
    enable_selinux
    selinux_category_range
    max_container_log_line_size
    disable_apparmor
    restrict_oom_score_adj
    disable_proc_mount
    unset_seccomp_profile
    tolerate_missing_hugetlb_controller
    disable_hugetlb_controller
    device_ownership_from_security_context
    ignore_image_defined_volumes
    netns_mounts_under_state_dir
    enable_unprivileged_ports
    enable_unprivileged_icmp
    enable_cdi
    cdi_spec_dirs
    drain_exec_sync_io_timeout
    ignore_deprecation_warnings
    containerd.default_runtime_name
    containerd.ignore_blockio_not_enabled_errors
    containerd.ignore_rdt_not_enabled_errors
    cni.bin_dir
    cni.conf_dir
    cni.max_conf_num
    cni.setup_serially
    cni.conf_template
    cni.ip_pref
    cni.use_internal_loopback`,
  "A runtime (runtimes.runc)": `
    runtime_type
    runtime_path
    pod_annotations container_annotations
    privileged_without_host_devices
    privileged_without_host_devices_all_devices_allowed
    base_runtime_spec
    cni_conf_dir
    cni_max_conf_num
    snapshotter
    sandboxer
    io_type
    BinaryName
    CriuImagePath CriuWorkPath
    IoGid IoUid
    NoNewKeyring
    Root
    ShimCgroup
    SystemdCgroup`,
  "Streams (io.containerd.grpc.v1.cri)": `
    disable_tcp_service
    stream_server_address
    stream_server_port
    stream_idle_timeout
    enable_tls_streaming
    x509_key_pair_streaming tls_cert_file tls_key_file`,
  "Other parts": `
    nri.disable
    nri.socket_path
    nri.plugin_path
    nri.plugin_config_path
    nri.plugin_registration_timeout
    nri.plugin_request_timeout
    nri.disable_connections
    image-verifier.bin_dir
    image-verifier.max_verifiers
    image-verifier.per_verifier_timeout
    tasks-service.blockio_config_file
    tasks-service.rdt_config_file
    overlayfs.root_path
    overlayfs.mount_options
    overlayfs.upperdir_label
    overlayfs.sync_remove
    overlayfs.slow_chown
    native.root_path
    blockfile root_path scratch_file fs_type mount_options recreate_scratch
    btrfs.root_path zfs.root_path
    devmapper root_path pool_name base_image_size async_remove discard_blocks fs_type fs_options
    gc.scheduler pause_threshold deletion_threshold mutation_threshold schedule_delay startup_delay
    restart.interval
    opt.path
    internal.tracing tracing.processor.otlp
    metadata.content_sharing_policy
    task.cgroups.no_prometheus
    task.platforms
    diff-service default sync_fs
    shim.manager.env
    transfer.local max_concurrent_downloads max_concurrent_uploaded_layers config_path`,
};
