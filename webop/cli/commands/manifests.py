"""``webop manifests`` and ``webop image``: parse the options, print what is built from them."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import shlex
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import click

from webop.cli.help_layout import SectionCommand, build_option
from webop.cli.manifests.chart import build_chart, prepare
from webop.cli.manifests.image import build_dockerfile, list_own_files
from webop.cli.manifests.objects import Request
from webop.cli.manifests.planning import build_manifests
from webop.cli.options import (
    CLIControls,
    check_handlers,
    choose_scope,
    load_quietly,
    scope_options,
    source_options,
    startup_option,
)
from webop.handlers.registry import OperatorRegistry
from webop.kopf_alias import is_aliased
from webop.logs.sanitizing import escape
from webop.objects.names import LABEL, RFC1123_LABEL
from webop.runtime.loading import guess_name

logger = logging.getLogger(__name__)

_HEAD = "# Made by: webop manifests"
_ADVICE = "# Do not edit it: run the command again, and use kustomize for what has no option."
_names, _scope, _others, _webhooks = map(
    build_option, ("Names", "Scope", "Replicas and other operators", "Webhooks")
)
_kinds, _output = map(build_option, ("Handlers", "Output"))


def _check_name(_: click.Context, param: click.Parameter, name: str | None) -> str | None:
    pattern = RFC1123_LABEL if param.metavar == "NAMESPACE" else LABEL
    if name is not None and not pattern.fullmatch(name):
        raise click.BadParameter(
            f"must be lowercase letters, digits and '-', 63 at most, got {name!r}.", param=param
        )
    return name


def _parse_variables(
    _: click.Context, __: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    if wrong := [name for name, separator, _ in pairs if not (separator and name.isidentifier())]:
        raise click.BadParameter(f"must be NAME=VALUE, got {wrong[0]!r}.")
    return {name: value for name, _, value in pairs}


def _check_networks(
    _: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    try:
        return tuple(str(ipaddress.ip_network(text)) for text in texts)
    except ValueError as exc:
        raise click.BadParameter(f"{exc}. It must be like 10.244.0.0/16.", param=param) from exc


class _RememberingCommand(SectionCommand):
    """A command that remembers its arguments, for the first line of its output."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["arguments"] = tuple(args)
        return super().parse_args(ctx, args)


@click.command(cls=_RememberingCommand)
@source_options(_kinds)
@_kinds(
    "--crd", "crds", multiple=True, metavar="PATH", type=click.Path(path_type=Path),
    help="A file or folder with CustomResourceDefinitions of your kinds; repeatable.",
)  # fmt: skip
@_kinds(
    "--cluster", "asks_cluster", is_flag=True,
    help="Look up the kinds in the cluster of your kubeconfig.",
)  # fmt: skip
@_kinds(
    "--rbac", multiple=True, metavar="RIGHT|FILE",
    help="Rights for what handlers do with other objects, such as secrets:get,list or "
    "apps/deployments/scale:patch; or a file with a YAML list of RBAC rules, which is copied with "
    "its comments; repeatable.",
)  # fmt: skip
@_kinds(
    "--env", "variables", multiple=True, metavar="NAME=VALUE", callback=_parse_variables,
    help="An environment variable for the container, and for startup handlers now; repeatable.",
)  # fmt: skip
@startup_option(_kinds)
@_names(
    "--name", metavar="NAME", callback=_check_name,
    help="The name of the operator and of its objects; by default, that of the package, the file "
    "or its folder, as for 'webop run'.",
)  # fmt: skip
@_names(
    "--operator-namespace", "home", metavar="NAMESPACE", callback=_check_name,
    help="The namespace of the operator itself; by default, the one of --namespace if there is "
    "exactly one, else 'default'.",
)  # fmt: skip
@_names("--create-namespace", "creates_namespace", is_flag=True, help="Also write the namespace.")
@_names("--image", metavar="IMAGE", help="The image, by default NAME:0.1.0 (see 'webop image').")
@scope_options(_scope)
@_others(
    "--replicas", type=click.IntRange(min=1), metavar="NUMBER",
    help="The number of pods; by default 2, or 1 with --no-lease if there are objects to handle.",
)  # fmt: skip
@_others(
    "--lease", metavar="NAME",
    help="The name of the leader's Lease, or of those of the shards; by default, --name.",
)  # fmt: skip
@_others("--no-lease", is_flag=True, help="Use no Lease: one replica, with a gap at each update.")
@_others(
    "--sharded", is_flag=True,
    help="Let all replicas work: they divide the objects, as with 'webop run --shards'.",
)  # fmt: skip
@_others(
    "--canary", metavar="IMAGE",
    help="With --sharded: also write the Deployment NAME-canary, a replica that tries this image "
    "on 2 of the 64 shards. It serves webhooks as the others do.",
)  # fmt: skip
@_others(
    "--priority-class", "priority", metavar="NAME",
    help="The priority class of the pods; by default, system-cluster-critical with webhooks, "
    "without which API servers refuse requests, else none; 'none' for none.",
)  # fmt: skip
@_others("-P", "--peering", metavar="NAME", help="The peering object; by default, no peering.")
@_others(
    "--metrics", metavar="NAMESPACE", callback=_check_name,
    help="Serve metrics to the pods of this namespace, such as that of Prometheus.",
)  # fmt: skip
@_webhooks(
    "--service", metavar="NAME", callback=_check_name,
    help="The name of the Service; by default, --name.",
)  # fmt: skip
@_webhooks(
    "--managed", metavar="NAME",
    help="The name of the webhook configurations that the operator maintains, or 'none' if you "
    "maintain them; by default NAME.NAMESPACE.svc.",
)  # fmt: skip
@_webhooks(
    "--ca", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Write webhook configurations that trust these CA certificates; the operator then "
    "maintains none.",
)  # fmt: skip
@_webhooks(
    "--pod-network", "pod_networks", multiple=True, metavar="CIDR",
    callback=_check_networks,
    help="The network of your pods, which then cannot connect to the webhooks; repeatable. By "
    "default, all pods can; with --cluster, those of the networks of its nodes cannot.",
)  # fmt: skip
@_output(
    "--rights-for", type=click.Choice(["run", "plan"]), default="run", show_default=True,
    help="'plan': only the account NAME-plan for 'webop plan', with the rights to read and to do "
    "dry runs, and a policy that denies it everything else.",
)  # fmt: skip
@_output(
    "--kustomize", "folder", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path),
    help="Write a kustomize base into this folder instead of printing.",
)  # fmt: skip
@_output(
    "--helm", "chart", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path),
    help="Write a Helm chart into this folder instead of printing; its values are the name, the "
    "image, the replicas, the resources, with --sharded the image of a canary and, without "
    "--operator-namespace and --namespace, the namespace.",
)  # fmt: skip
@click.make_pass_decorator(CLIControls, ensure=True)
@click.pass_context
def manifests(
    ctx: click.Context,
    controls: CLIControls,
    /,
    paths: tuple[str, ...],
    modules: tuple[str, ...],
    folder: Path | None,
    chart: Path | None,
    clusterwide: bool,
    no_lease: bool,
    **options: Any,
) -> None:
    """Print the manifests of an operator with the handlers of the files in PATHS.

    These are: a service account with exactly the rights that the handlers and the settings need;
    a Deployment; a PodDisruptionBudget; a NetworkPolicy; with webhooks, a Service; with rules
    (webop.rule), admission policies; with models, CustomResourceDefinitions.

    The command imports the files and calls their startup handlers. It cannot see what handlers do
    with other objects: declare that in settings.networking.rights, or with --rbac.

    \b
        webop manifests handlers.py | kubectl apply -f -
        webop manifests --rbac secrets:get,list --operator-namespace operators handlers.py
        webop manifests --kustomize deploy/base handlers.py
        webop manifests --helm chart handlers.py
    """  # noqa: D301  \b keeps click from wrapping the lines
    _, sources, name = _locate(paths, modules, options.pop("name"))
    _, namespaces = choose_scope(ctx, clusterwide, options.pop("namespaces"))
    for other in ("lease", "sharded"):
        if no_lease and options[other]:
            raise click.UsageError(f"--{other} and --no-lease exclude each other.")
    if options["canary"] and not options["sharded"]:
        raise click.UsageError("--canary needs --sharded: a canary tries a version on shards.")
    if options["rights_for"] == "plan" and (chart or options["canary"]):
        other = "--helm" if chart else "--canary"
        raise click.UsageError(
            f"--rights-for plan and {other} exclude each other: it prints only an account."
        )
    if folder and chart:
        raise click.UsageError("--kustomize and --helm exclude each other.")
    home = options.pop("home") or (namespaces[0] if len(namespaces) == 1 else "")
    is_placed = bool(home or namespaces)
    image = options.pop("image") or f"{name}:0.1.0"
    variables = options["variables"]
    request = Request(
        sources=sources,
        name=name,
        home=home or "default",
        image=image,
        namespaces=namespaces,
        has_lease=not no_lease,
        **options,
    )
    kept = {name: text for name, text in os.environ.items() if not name.startswith("WEBOP_")}
    with _replacing_environment(kept | variables):  # as in the container
        registry = _load(paths, modules, controls)
        planned = prepare(request, is_placed=is_placed) if chart else request
        made, warnings = asyncio.run(build_manifests(registry, planned))
    for warning in warnings:
        click.echo(f"Warning: {warning}", err=True)
    command = escape(shlex.join(ctx.meta["arguments"]))
    advice = _ADVICE.replace("use kustomize", "set values or use kustomize") if chart else _ADVICE
    head = f"{_HEAD} {command}\n{advice}"
    if chart:
        _write_files(chart, build_chart(made, request, head, is_placed=is_placed))
    elif folder:
        files = {f"{stem}.yaml": "\n---\n".join(texts) for stem, texts in made.items() if texts}
        kinds = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n"
        index = {"kustomization.yaml": kinds + "\n".join(f"  - {file}" for file in sorted(files))}
        _write_files(folder, {file: f"{head}\n{text}\n" for file, text in (index | files).items()})
    else:
        click.echo("\n---\n".join([head, *chain.from_iterable(made.values())]))


def _write_files(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files into a folder; replace only files that this command has written there.

    The first file names the others or their place: without it, the folder has no such files, but
    perhaps printed manifests.
    """
    try:
        is_own = (folder / next(iter(texts))).exists()
        for path in [folder / file for file in texts]:
            if path.exists() and not (is_own and path.read_bytes().startswith(_HEAD.encode())):
                raise click.ClickException(
                    f"Cannot replace '{path}': this command did not make it. Move it, or name "
                    "another folder."
                )
        for file, text in texts.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
    except OSError as exc:
        raise click.ClickException(f"Cannot write to '{folder}': {exc.strerror}.") from exc
    click.echo(f"Wrote {len(texts)} files to {folder}.", err=True)


@click.command(cls=_RememberingCommand)
@source_options()
@click.option("--name", metavar="NAME", callback=_check_name, help="As for 'webop manifests'.")
@click.option(
    "--wheels",
    metavar="FOLDER",
    help="A folder beside the files with wheels that are in no package index, such as webop's; by "
    "default, 'wheels' if there is one.",
)
@click.make_pass_decorator(CLIControls, ensure=True)
@click.pass_context
def image(
    ctx: click.Context,
    controls: CLIControls,
    /,
    paths: tuple[str, ...],
    modules: tuple[str, ...],
    name: str | None,
    wheels: str | None,
) -> None:
    """Print a Dockerfile for an operator with the handlers of the files in PATHS.

    Build the image in the folder of the files. The Dockerfile installs the wheels in its folder
    'wheels', and requirements.txt, or else the project of pyproject.toml, or else only webop. It
    copies the files and the modules of the folder that they import; the command imports the files
    to find these. You must add other files, such as templates.

    \b
        pip wheel --no-deps --wheel-dir wheels PATH/TO/CLONE   # of webop, before its first release
        webop image handlers.py > Dockerfile
        docker build -t my-operator:0.1.0 .
        kind load docker-image my-operator:0.1.0               # or: docker push
    """  # noqa: D301  \b keeps click from wrapping the lines
    root, sources, name = _locate(paths, modules, name)
    _load(paths, modules, controls)
    files = list_own_files(root)
    command = escape(shlex.join(ctx.meta["arguments"]))
    click.echo(
        build_dockerfile(
            root, files, sources, command=command, name=f"{name}:0.1.0", wheels=wheels
        ),
        nl=False,
    )


def _locate(
    paths: tuple[str, ...], modules: tuple[str, ...], name: str | None
) -> tuple[Path, list[str], str]:
    """Return the folder of the operator, its sources relative to the folder, and its name."""
    if not paths and not modules:
        raise click.UsageError("Name the files with the handlers, or modules with -m.")
    folders = [str(Path(path).resolve().parent) for path in paths] + [str(Path.cwd())] * bool(
        modules
    )
    root = Path(os.path.commonpath(folders))
    sources = ["--aliased"] * is_aliased() + [f"--module={module}" for module in modules]
    sources += [str(Path(path).resolve().relative_to(root)) for path in paths]
    return root, sources, name or guess_name([*paths, *modules])


@contextlib.contextmanager
def _replacing_environment(variables: Mapping[str, str]) -> Iterator[None]:
    former = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(former)


def _load(
    paths: tuple[str, ...], modules: tuple[str, ...], controls: CLIControls
) -> OperatorRegistry:
    registry, _ = load_quietly(paths, modules, controls.registry)
    check_handlers(registry, (*paths, *modules))
    return registry
