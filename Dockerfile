# The operator of examples/ephemeral_volume_claims, for manifests/deployment.yaml:
#   docker build -t webop-example:0.1.0 .
# For an operator of your own: "RUN pip install webop", and COPY your files instead of these.
FROM python:3.13-slim

WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY webop webop
RUN pip install --no-cache-dir . && rm -rf /build

WORKDIR /src
COPY examples/ephemeral_volume_claims .
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A number, so that Kubernetes can see that it is not root.
USER 65532:65532
EXPOSE 8080 9443

# Exec form: the signals to stop get to the operator itself.
ENTRYPOINT ["webop"]
CMD ["run", "--all-namespaces", "--liveness=http://0.0.0.0:8080/healthz", "handlers.py"]
