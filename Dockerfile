# The operator of examples/ephemeral_volume_claims, for manifests/deployment.yaml:
#   docker build -t webop-example:0.1.0 .
# For an operator of your own: "RUN pip install --only-binary=:all: webop", and COPY your files
# instead of these.
# By digest, so that each build has the same base. To take a newer one, with its fixes:
#   docker buildx imagetools inspect python:3.13-slim
FROM python:3.13.15-slim-trixie@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b

WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY webop webop
RUN pip install --no-cache-dir --only-binary=:all: . && rm -rf /build

WORKDIR /src
COPY examples/ephemeral_volume_claims .
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A number, so that Kubernetes can see that it is not root.
USER 65532:65532
EXPOSE 8080 9443

# Exec form: the signals to stop get to the operator itself.
ENTRYPOINT ["webop"]
CMD ["run", "--all-namespaces", "--liveness=http://0.0.0.0:8080/healthz", "handlers.py"]
