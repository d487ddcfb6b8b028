# The operator of examples/ephemeral_volume_claims, for manifests/operator.yaml:
#   docker build -t webop-example:0.1.0 .
# It installs webop from this folder, and the versions that uv.lock names. For your operator, run "webop image".
# The digest pins the base image; "make manifests" copies it from webop/cli/manifests/base_image.txt.
FROM python:3.13-slim-trixie@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b AS base

# If a package needs a compiler, install it here (RUN apt-get install ...), not in the final image.
FROM base AS build
WORKDIR /build
RUN pip install --no-cache-dir 'uv>=0.9,<1'
COPY ["LICENSE", "README.md", "pyproject.toml", "pytest_webop.py", "uv.lock", "./"]
RUN uv export --quiet --locked --no-dev --no-emit-project --output-file requirements.txt \
 && pip install --no-cache-dir --only-binary=:all: --require-hashes --prefix=/operator --requirement requirements.txt
COPY webop webop
COPY tools/package_metadata.py tools/
RUN pip install --no-cache-dir --no-deps --prefix=/operator .

FROM base
COPY --from=build /operator /usr/local
WORKDIR /src
COPY ["examples/ephemeral_volume_claims", "./"]
# Python writes no files, so the root file system can be read-only.
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A number, so that Kubernetes can check that the user is not root.
USER 65532:65532
EXPOSE 8080 9443
# No shell, so that signals reach the operator. No HEALTHCHECK, because Kubernetes uses probes.
ENTRYPOINT ["webop"]
CMD ["run", "--all-namespaces", "--liveness=http://0.0.0.0:8080/healthz", "handlers.py"]
