"""The Certificate of cert-manager."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Literal

from pydantic import Field

import webop

# fmt: off
Usage = Literal[
    "signing", "digital signature", "content commitment", "key encipherment", "key agreement",
    "data encipherment", "cert sign", "crl sign", "encipher only", "decipher only", "any",
    "server auth", "client auth", "code signing", "email protection", "s/mime",
    "ipsec end system", "ipsec tunnel", "ipsec user", "timestamping", "ocsp signing",
    "microsoft sgc", "netscape sgc",
]
# fmt: on


class IssuerRef(webop.Struct):
    name: str
    group: str | None = None
    kind: str | None = None


class OutputFormat(webop.Struct):
    type: Literal["DER", "CombinedPEM"]


class PasswordSecretRef(webop.Struct):
    name: str
    key: str | None = None


class JKS(webop.Struct):
    create: bool
    alias: str | None = None
    password: str | None = None
    password_secret_ref: PasswordSecretRef | None = None


class PKCS12(webop.Struct):
    create: bool
    password: str | None = None
    password_secret_ref: PasswordSecretRef | None = None
    profile: Literal["LegacyRC2", "LegacyDES", "Modern2023", "Modern2026"] | None = None


class Keystores(webop.Struct):
    jks: JKS | None = None
    pkcs12: PKCS12 | None = None


class Names(webop.Struct):
    dns_domains: list[str] | None = None
    email_addresses: list[str] | None = None
    ip_ranges: list[str] | None = None
    uri_domains: list[str] | None = None


class NameConstraints(webop.Struct):
    critical: bool | None = None
    excluded: Names | None = None
    permitted: Names | None = None


class OtherName(webop.Struct):
    oid: str | None = None
    utf8_value: str | None = None


class PrivateKey(webop.Struct):
    algorithm: Literal["RSA", "ECDSA", "Ed25519"] | None = None
    encoding: Literal["PKCS1", "PKCS8"] | None = None
    rotation_policy: Literal["Never", "Always"] | None = None
    size: int | None = None


class Window(webop.Struct):
    cron: str = Field(min_length=1)
    window_duration: str = Field(pattern=r"^([0-9]+(\.[0-9]+)?(s|m|h))+$")
    timezone: str | None = Field(None, min_length=1)


class Renewal(webop.Struct):
    policy: Literal["RenewBefore", "Disabled"] | None = None
    windows: list[Window] | None = None


class SecretTemplate(webop.Struct):
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class Subject(webop.Struct):
    countries: list[str] | None = None
    localities: list[str] | None = None
    organizational_units: list[str] | None = None
    organizations: list[str] | None = None
    postal_codes: list[str] | None = None
    provinces: list[str] | None = None
    serial_number: str | None = None
    street_addresses: list[str] | None = None


class CertificateSpec(webop.Struct):
    issuer_ref: IssuerRef
    secret_name: str
    additional_output_formats: list[OutputFormat] | None = None
    common_name: str | None = None
    dns_names: list[str] | None = None
    duration: str | None = None
    email_addresses: list[str] | None = None
    encode_usages_in_request: bool | None = None
    ip_addresses: list[str] | None = None
    is_ca: bool | None = Field(None, alias="isCA")
    keystores: Keystores | None = None
    literal_subject: str | None = None
    name_constraints: NameConstraints | None = None
    other_names: list[OtherName] | None = None
    private_key: PrivateKey | None = None
    renew_before: str | None = None
    renew_before_percentage: webop.Int32 | None = None
    renewal: Renewal | None = None
    revision_history_limit: webop.Int32 | None = None
    secret_template: SecretTemplate | None = None
    signature_algorithm: (
        Literal[
            "SHA256WithRSA",
            "SHA384WithRSA",
            "SHA512WithRSA",
            "ECDSAWithSHA256",
            "ECDSAWithSHA384",
            "ECDSAWithSHA512",
            "PureEd25519",
        ]
        | None
    ) = None
    subject: Subject | None = None
    uris: list[str] | None = None
    usages: list[Usage] | None = None


class SuggestedWindow(webop.Struct):
    end: dt.datetime
    start: dt.datetime


class ARI(webop.Struct):
    explanation_url: str | None = Field(None, alias="explanationURL")
    last_checked: dt.datetime | None = None
    last_error: str | None = None
    next_check: dt.datetime | None = None
    suggested_window: SuggestedWindow | None = None


class ACME(webop.Struct):
    ari: ARI | None = None


class Condition(webop.Struct):
    status: Literal["True", "False", "Unknown"]
    type: str
    last_transition_time: dt.datetime | None = None
    message: str | None = None
    observed_generation: webop.Int64 | None = None
    reason: str | None = None


class CertificateStatus(webop.Struct):
    acme: ACME | None = None
    conditions: Annotated[list[Condition] | None, webop.ListKeys("type")] = None
    failed_issuance_attempts: int | None = None
    last_failure_time: dt.datetime | None = None
    next_private_key_secret_name: str | None = None
    not_after: dt.datetime | None = None
    not_before: dt.datetime | None = None
    renewal_time: dt.datetime | None = None
    revision: int | None = None


@webop.resource(
    "cert-manager.io",
    "v1",
    short_names=["cert", "certs"],
    categories=["cert-manager"],
    columns={
        "Ready": '.status.conditions[?(@.type == "Ready")].status',
        "Secret": ".spec.secretName",
        "Issuer": webop.Column(".spec.issuerRef.name", priority=1),
        "Status": webop.Column('.status.conditions[?(@.type == "Ready")].message', priority=1),
        "Age": ".metadata.creationTimestamp",
    },
    selectable=[".spec.issuerRef.group", ".spec.issuerRef.kind", ".spec.issuerRef.name"],
)
class Certificate(webop.Model):
    spec: CertificateSpec | None = None
    status: CertificateStatus | None = None
