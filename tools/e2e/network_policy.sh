#!/usr/bin/env bash
# Checks the NetworkPolicy of the operator: pods of the namespace "monitoring" can connect to the port of its probes,
# those of "default" cannot.
#   tools/e2e/network_policy.sh TAG
# Needs nodes, and a network that enforces policies, such as that of kind 0.24 and later.
set -euo pipefail
if [[ ${1:---help} == --help ]]; then sed -n '2,5s/^# \?//p' "$0"; exit; fi
address=$(kubectl get pods --namespace notes --selector app.kubernetes.io/name=notes \
  --output jsonpath='{.items[0].status.podIP}')
# Prints "connected", or the name of the error.
connect_from() {
  kubectl run "probe-$RANDOM" --namespace "$1" --image "webop-e2e:$2" --rm --stdin --quiet --restart Never \
    --pod-running-timeout 120s --command -- python -c "
import socket
try:
    socket.create_connection(('$address', 8080), timeout=5).close()
    print('connected')
except OSError as error:
    print(type(error).__name__)
"
}
kubectl create namespace monitoring --dry-run=client --output yaml | kubectl apply --filename -
allowed=$(connect_from monitoring "$1")
refused=$(connect_from default "$1")
echo "From monitoring: $allowed. From default: $refused."
[[ $allowed == connected && $refused == TimeoutError ]]
