#!/usr/bin/env bash
# Waits until all pods of the operator are ready, and until its webhook denies.
#   tools/e2e/wait.sh
# Needs nodes.
set -euo pipefail
if [[ ${1:-} == --help ]]; then sed -n '2,4s/^# \?//p' "$0"; exit; fi
kubectl rollout status deployment/notes --namespace notes --timeout 180s
for _ in {1..60}; do
  denial=$(kubectl create --dry-run=server --filename - 2>&1 <<'NOTE' || true
{apiVersion: e2e.webop.dev/v1, kind: Note, metadata: {name: bad, namespace: default}, spec: {text: bad}}
NOTE
  )
  if [[ $denial == *"spec.text is bad"* ]]; then exit; fi
  sleep 1
done
echo "The webhook does not deny: $denial" >&2
exit 1
