# The operator of examples/ephemeral_volume_claims, for manifests/operator.yaml:
#   docker build -t webop-example:0.1.0 .
# For an operator of your own, "webop image" prints a Dockerfile; this one takes webop from here.
# By digest, so that each build has the same base. To take a newer one, with its fixes:
#   docker buildx imagetools inspect python:3.13-slim
FROM python:3.13.15-slim-trixie@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b AS base

# What needs a compiler can get one here (RUN apt-get install ...): it does not get further.
FROM base AS build
WORKDIR /build
COPY ["LICENSE", "README.md", "pyproject.toml", "./"]
COPY webop webop
RUN pip install --no-cache-dir --only-binary=:all: --prefix=/operator .

FROM base
COPY --from=build /operator /usr/local
WORKDIR /src
COPY ["examples/ephemeral_volume_claims", "./"]
# Nothing is written: the root file system can be read-only.
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A number, so that Kubernetes can see that it is not root.
USER 65532:65532
EXPOSE 8080 9443
# No shell in between: signals must get to the operator itself. There is no HEALTHCHECK, as
# Kubernetes has probes.
ENTRYPOINT ["webop"]
CMD ["run", "--all-namespaces", "--liveness=http://0.0.0.0:8080/healthz", "handlers.py"]
