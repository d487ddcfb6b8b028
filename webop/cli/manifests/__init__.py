"""Build what a deployment of an operator needs: Kubernetes objects, RBAC rules, a Dockerfile."""
