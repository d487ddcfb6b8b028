from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.kit.waiting import wait_until
from webop.controlplane import reaper
from webop.controlplane.cluster import LocalCluster
from webop.errors import ClusterError, ConfigurationError

_RUN_AND_WAIT = """
import sys, time
from webop.testing import LocalCluster
with LocalCluster() as cluster:
    print(cluster.name, *cluster.pids.values(), flush=True)
    time.sleep(600)
"""


def _succeeds(cluster: LocalCluster, *arguments: str) -> bool:
    try:
        cluster.kubectl(*arguments)
    except ClusterError:
        return False
    return True


def test_kubectl_works_with_the_kubeconfig(cluster: LocalCluster) -> None:
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    cluster.kubectl("create", "configmap", "one", "--from-literal=a=b")
    command = ["kubectl", "get", "configmap", "one", "-o", "jsonpath={.data.a}"]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout == "b"
    with pytest.raises(ClusterError, match='"two" not found'):
        cluster.kubectl("get", "configmap", "two")


def test_keys_and_tokens_are_for_this_user_only(cluster: LocalCluster) -> None:
    assert cluster.folder.stat().st_mode & 0o777 == 0o700
    for path in cluster.folder.glob("*.*"):
        if path.is_file() and path.name != "state.json":
            assert path.stat().st_mode & 0o777 == 0o600, path


def test_nothing_listens_but_the_api_server_on_the_loopback(cluster: LocalCluster) -> None:
    if not Path("/proc/net/tcp").exists():
        pytest.skip("needs the /proc of Linux")
    listening = set()
    for pid in cluster.pids.values():
        inodes = set()
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            target = str(descriptor.readlink()) if descriptor.is_symlink() else ""
            if target.startswith("socket:["):
                inodes.add(target[len("socket:[") : -1])
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    listening.add(fields[1])
    port = int(cluster.server.rpartition(":")[2])
    assert listening == {f"0100007F:{port:04X}"}


def test_another_user_may_do_only_what_is_granted(cluster: LocalCluster) -> None:
    kubeconfig = f"--kubeconfig={cluster.kubeconfig_for('alice', ['devs'])}"
    with pytest.raises(ClusterError, match='User "alice" cannot list resource "secrets"'):
        cluster.kubectl("get", "secrets", kubeconfig)
    cluster.kubectl("create", "clusterrole", "list", "--verb=list", "--resource=pods")
    cluster.kubectl("create", "clusterrolebinding", "list", "--clusterrole=list", "--group=devs")
    command = ("auth", "can-i", "list", "pods", kubeconfig)
    wait_until(lambda: _succeeds(cluster, *command))


@pytest.mark.journey
def test_the_controller_manager_collects_garbage_and_removes_namespaces(
    cluster: LocalCluster,
) -> None:
    cluster.start_controller_manager()
    pid = cluster.pids["kube-controller-manager"]
    cluster.start_controller_manager()
    assert cluster.pids["kube-controller-manager"] == pid
    namespace = cluster.create_namespace()
    options = ("-n", namespace)
    cluster.kubectl("create", "configmap", "owner", *options)
    uid = cluster.kubectl("get", "configmap", "owner", *options, "-o=jsonpath={.metadata.uid}")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
    owned = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "owned", "ownerReferences": [owner]},
    }
    cluster.kubectl("create", *options, "-f", "-", stdin=json.dumps(owned))
    cluster.kubectl("delete", "configmap", "owner", *options)
    wait_until(lambda: "owned" not in cluster.kubectl("get", "configmaps", *options))
    cluster.delete_namespace(namespace)
    wait_until(lambda: namespace not in cluster.kubectl("get", "namespaces"))
    rules = ("get", "clusterrole", "view", "-o=jsonpath={.rules}")
    wait_until(lambda: "configmaps" in cluster.kubectl(*rules))


def test_a_killed_api_server_comes_back_on_its_port_with_its_data(cluster: LocalCluster) -> None:
    server, pid = cluster.server, cluster.pids["kube-apiserver"]
    namespace = cluster.create_namespace()
    cluster.kill_apiserver()
    assert reaper.get_start_time(pid) is None
    assert not cluster.is_ready()
    cluster.restart_apiserver()
    assert cluster.server == server
    assert cluster.pids["kube-apiserver"] != pid
    assert namespace in cluster.kubectl("get", "namespaces")


@pytest.mark.journey
def test_a_killed_etcd_comes_back_with_its_data_under_the_same_api_server(
    cluster: LocalCluster,
) -> None:
    before, namespace = cluster.pids, cluster.create_namespace()
    cluster.kill_etcd()
    assert reaper.get_start_time(before["etcd"]) is None
    assert not cluster.is_ready()
    cluster.restart_etcd()
    assert {name for name, pid in cluster.pids.items() if pid != before[name]} == {"etcd"}
    assert cluster.get("v1", "Namespace", namespace)


def test_a_cluster_of_a_killed_process_goes_with_it(use_real_assets: None, cache: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _RUN_AND_WAIT], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        name, *pids = child.stdout.readline().split()
        assert len(pids) == 2
        child.kill()
    wait_until(lambda: all(reaper.get_start_time(int(pid)) is None for pid in pids))
    wait_until(lambda: not (cache / "clusters" / name).exists())
    assert (cache / "logs" / name / "kube-apiserver.log").stat().st_size


def test_a_stopped_cluster_leaves_its_logs_and_nothing_else(
    standin_assets: Path, cache: Path
) -> None:
    with LocalCluster() as cluster:
        pids = cluster.pids
        assert cluster.is_started
        assert cluster.start() is cluster
    assert all(reaper.get_start_time(pid) is None for pid in pids.values())
    assert not [path for path in (cache / "clusters").iterdir() if path.is_dir()]
    assert (cluster.logs / "kube-apiserver.log").exists()
    cluster.stop()
    with pytest.raises(ConfigurationError, match=r"is not started\. .* `webop cluster start`"):
        _ = cluster.server


def test_a_cluster_whose_folder_was_removed_is_stopped(standin_assets: Path) -> None:
    cluster = LocalCluster().start()
    pids = cluster.pids
    shutil.rmtree(cluster.folder)
    cluster.stop()
    assert all(reaper.get_start_time(pid) is None for pid in pids.values())


def test_a_cluster_of_another_version_of_webop_makes_way_for_a_new_one(
    standin_assets: Path,
) -> None:
    if not Path("/proc/self").exists():
        pytest.skip("needs the /proc of Linux")
    former = LocalCluster("one").start(detached=True)
    (former.folder / reaper.STATE_FILE).write_text('{"processes": []}')
    with LocalCluster("one") as cluster:
        assert cluster.is_ready()
        assert all(reaper.get_start_time(pid) is None for pid in former.pids.values())


def test_a_worker_gets_a_shared_cluster_when_its_controllers_work(
    standin_assets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = threading.Thread(target=_start_again, args=("one",))

    def let_other_try(_: LocalCluster) -> None:
        other.start()
        other.join(0.5)
        assert other.is_alive()

    monkeypatch.setattr(LocalCluster, "start_controller_manager", let_other_try)
    with LocalCluster("one", controller_manager=True):
        other.join()


def _start_again(name: str) -> None:
    with pytest.raises(ConfigurationError, match="exists already"):
        LocalCluster(name).start()


def test_an_api_server_that_does_not_start_is_told_with_its_log(standin_assets: Path) -> None:
    (standin_assets / "refuse").touch()
    cluster = LocalCluster(apiserver_flags=["--gravity=9.81"])
    with pytest.raises(ClusterError, match="unknown flag: --gravity") as failure:
        cluster.start()
    assert str(cluster.logs / "kube-apiserver.log") in str(failure.value)
    assert "unknown flag" in (cluster.logs / "kube-apiserver.log").read_text()
    assert not cluster.is_started


def test_clusters_run_side_by_side_and_are_found_by_their_names(standin_assets: Path) -> None:
    with LocalCluster("one") as one, LocalCluster("two") as two:
        assert one.server != two.server
        assert one.token != two.token
        found = LocalCluster.attach("two")
        assert (found.server, found.token) == (two.server, two.token)
        with pytest.raises(ConfigurationError, match="Cluster 'one' exists already"):
            LocalCluster("one").start()
        assert one.is_ready()
    with pytest.raises(ClusterError, match="webop cluster start --name two"):
        LocalCluster.attach("two")
