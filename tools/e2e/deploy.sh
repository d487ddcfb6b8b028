#!/usr/bin/env bash
# Applies the operator of tools/e2e/operator to the cluster of KUBECONFIG, or upgrades it.
#   tools/e2e/deploy.sh manifests TAG    webop manifests | kubectl apply
#   tools/e2e/deploy.sh chart TAG        webop manifests --helm, then helm upgrade --install
#   tools/e2e/deploy.sh remove           deletes what "manifests" has applied
# Needs no nodes: without them, the pods do not start. HELM names another helm.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root/tools/e2e/operator"
make_manifests() {
  "$root/.venv/bin/webop" manifests --operator-namespace notes --metrics monitoring "$@" notes.py
}
case ${1:---help} in
  manifests)
    make_manifests --create-namespace --image "webop-e2e:$2" | kubectl apply --server-side --filename -
    ;;
  chart)
    chart=$(mktemp --directory)
    trap 'rm --recursive --force "$chart"' EXIT
    make_manifests --helm "$chart"
    "${HELM:-helm}" upgrade --install notes "$chart" --namespace notes --create-namespace \
      --set image="webop-e2e:$2"
    ;;
  remove)
    # The last replica removes its webhooks, for which it still needs its rights.
    kubectl delete deployment notes --namespace notes --ignore-not-found --cascade foreground
    make_manifests | kubectl delete --ignore-not-found --filename -
    ;;
  *) sed -n "2,6s/^# \\?//p" "$root/tools/e2e/deploy.sh" ;;
esac
