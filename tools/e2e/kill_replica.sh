#!/usr/bin/env bash
# Kills the process of one pod of the operator with SIGKILL, and waits until the kubelet has restarted it.
#   tools/e2e/kill_replica.sh
# Needs nodes of kind: the process is killed in the container of the node, since a pod cannot kill its first process.
set -euo pipefail
if [[ ${1:-} == --help ]]; then sed -n '2,4s/^# \?//p' "$0"; exit; fi
read -r pod node id restarts < <(kubectl get pods --namespace notes --selector app.kubernetes.io/name=notes --output \
  go-template='{{with index .items 0}}{{.metadata.name}} {{.spec.nodeName}} {{with index .status.containerStatuses 0}}{{.containerID}} {{.restartCount}}{{end}}{{"\n"}}{{end}}')
pid=$(docker exec "$node" crictl inspect --output go-template --template '{{.info.pid}}' "${id#containerd://}")
docker exec "$node" kill -9 "$pid"
echo "Killed process $pid of $pod on $node."
kubectl wait "pod/$pod" --namespace notes --timeout 120s \
  --for "jsonpath={.status.containerStatuses[0].restartCount}=$((restarts + 1))"
kubectl wait "pod/$pod" --namespace notes --timeout 120s --for condition=Ready
