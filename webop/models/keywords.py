"""Keywords of schemas that only Kubernetes has (Kubernetes: "Structural schemas")."""

RULES = "x-kubernetes-validations"
LIST_TYPE, LIST_KEYS = "x-kubernetes-list-type", "x-kubernetes-list-map-keys"
MAP_TYPE = "x-kubernetes-map-type"
EMBEDDED = "x-kubernetes-embedded-resource"
PRESERVE = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"
