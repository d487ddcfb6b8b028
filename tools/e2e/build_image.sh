#!/usr/bin/env bash
# Builds the image of tools/e2e/operator as users do, and loads it into a cluster of kind.
#   tools/e2e/build_image.sh TAG [NAME OF THE CLUSTER]
# Needs Docker and kind, so it does not run on a local cluster of webop.
set -euo pipefail
if [[ ${1:---help} == --help ]]; then sed -n '2,4s/^# \?//p' "$0"; exit; fi
root=$(cd "$(dirname "$0")/../.." && pwd)
context=$(mktemp --directory)
trap 'rm --recursive --force "$context"' EXIT
cp "$root/tools/e2e/operator/notes.py" "$context"
cd "$context"
"$root/.venv/bin/pip" wheel --quiet --no-deps --wheel-dir wheels "$root"
"$root/.venv/bin/webop" image notes.py > Dockerfile
docker build --tag "webop-e2e:$1" .
kind load docker-image "webop-e2e:$1" --name "${2:-kind}"
