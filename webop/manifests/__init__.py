"""What it takes to deploy an operator: Kubernetes objects, RBAC rules, an image."""
