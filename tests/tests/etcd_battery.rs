//! The hostile battery against metadata that follows etcd: it takes etcd away in every way, and damages what was kept.

use serde_json::json;
use tests::battery;
use tests::binaries;
use tests::shared::{Exclusive, folder, python, there};

#[test]
fn metadata_outlives_etcd() {
    if !there(&[("etcd", "--version")], "etcd-server") {
        return;
    }
    let (Some(shared), Some(mut python)) = (folder(), python()) else { return };
    let _quiet = Exclusive::processors();
    let document = json!({
        "berth": 1,
        "services": [{ "name": "web", "stack": "shop" }],
        "containers": [{
            "name": "web-1", "service": "shop/web", "primary_ip": "10.42.0.1", "labels": { "version": "v{n}" },
        }],
    });
    let path = tempfile::tempdir().unwrap();
    let value = path.path().join("value.json");
    std::fs::write(&value, document.to_string()).unwrap();
    let start = format!(
        "{} --source etcd:{{etcd}} --listen 127.0.0.1:{{port}} --admin 127.0.0.1:0 --state-dir {{cache}} --when-empty unavailable",
        binaries::path("metadata").display()
    );
    python.arg(shared.join("batteries/etcd_chaos.py")).arg("--cold-cache").args(["--start", &start]);
    python.args(["--probe", "http://127.0.0.1:{port}/latest/containers/web-1/labels/version"]);
    python.args(["--key", "/berth/v1/documents/shop", "--expect", "^200 v{n}$"]);
    python.arg("--value").arg(format!("@{}", value.display()));
    // How soon after etcd's word, and after its return; the battery's own limits are for a quiet machine.
    let scaled = |seconds: f64| (seconds * tests::wait::scale()).to_string();
    python.args(["--fresh", &scaled(1.0), "--recover", &scaled(5.0)]);
    battery::pass(&mut python, "etcd taken away");
}
