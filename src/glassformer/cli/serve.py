"""`glass serve`: models behind the interfaces that programs already speak."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from glassformer.cli import bars, common
from glassformer.cli.batch import RayOption, check_workers
from glassformer.cli.command import OptionGroup, option
from glassformer.cli.options import ModelGroup
from glassformer.cli.processes import note_models
from glassformer.ground.errors import SettingError, did_you_mean
from glassformer.ground.garbage_collection import collect_as_usual
from glassformer.page.format import pluralize, to_json

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from glassformer.ground.progress import NamedProgress
    from glassformer.runtime.model import Model
    from glassformer.serving.http.security import Security
    from glassformer.serving.limits import Limits
    from glassformer.serving.registry import ModelSource
    from glassformer.steering.library import Library

EXAMPLE = (
    "Example: glass serve   ·   glass serve -m smollm2 -m embedder=minilm --port 9000   ·   "
    "GLASS_API_KEY=… glass serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem   ·   "
    "glass serve --limit queued=64 --limit new_tokens=1024"
)


@dataclass(frozen=True)
class ServedModelsGroup(ModelGroup):
    """Which models, and how they run."""

    HEADING = "Models"

    model: Annotated[
        list[str] | None,
        option(
            "--model", "-m", metavar="[ALIAS=]NAME",
            help="A model to serve, by the name that clients use; repeatable. By default all models that are here.",
        ),
    ] = None  # type: ignore[assignment]  # fmt: skip
    steering: Annotated[
        Path | None, option("--steering", metavar="DIR", help="A folder of steering vectors, which clients can name.")
    ] = None

    features: Annotated[
        Path | None, option("--features", metavar="DIR", help="A folder of sparse autoencoders, which clients can name.")
    ] = None

    lenses: Annotated[
        Path | None, option("--lenses", metavar="DIR", help="A folder of tuned lenses, which clients can name.")
    ] = None

    assistant: Annotated[
        str | None,
        option(
            "--assistant", metavar="mtp",
            help="mtp: models with a head of their own for further tokens draft with it, instead of by prompt lookup.",
        ),
    ] = None  # fmt: skip

    @property
    def library(self) -> Library:
        """What clients can name, of the folders that exist."""
        from glassformer.steering.library import Library

        for name, folder in (("--steering", self.steering), ("--features", self.features), ("--lenses", self.lenses)):
            if folder is not None and not folder.is_dir():
                raise SettingError(f"{name} {str(folder)!r} is no folder. Make it, or name another.")
        return Library(self.steering, self.features, lenses=self.lenses)


@dataclass(frozen=True)
class AddressGroup(OptionGroup):
    """Where it listens, and to whom."""

    HEADING = "Address"

    host: Annotated[str, option(help="The address to listen on; any but this machine's own needs a key.")] = "127.0.0.1"
    port: Annotated[int, option(minimum=0, maximum=65535, help="The port; 0: any that is free.")] = 8000
    api_key: Annotated[
        str | None,
        option(
            envvar="GLASS_API_KEY", default_shown=False,
            help="The key that clients must send; several, separated by commas, are several clients.",
        ),
    ] = None  # fmt: skip
    tls_cert: Annotated[Path | None, option(metavar="FILE", help="A certificate, for https.")] = None
    tls_key: Annotated[Path | None, option(metavar="FILE", help="The certificate's key.")] = None
    allow_host: Annotated[list[str] | None, option(help="A further name that the server is reached by; repeatable.")] = None
    allow_origin: Annotated[
        list[str] | None, option(help="Web pages that may use it, such as https://example.com; repeatable.")
    ] = None
    trusted_proxy: Annotated[
        list[str] | None,
        option(
            metavar="ADDRESS",
            help="A proxy, or a network such as 10.0.0.0/8, whose X-Forwarded-For says who asks; repeatable.",
        ),
    ] = None


@dataclass(frozen=True)
class PermissionsGroup(OptionGroup):
    """What clients may do beyond asking models."""

    HEADING = "Permissions"

    allow_pull: Annotated[
        bool, option("--allow-pull", help="Clients may fetch models of the catalogue and the hub: POST /api/pull.")
    ] = False
    allow_delete: Annotated[
        bool,
        option("--allow-delete", help="Clients may rename and delete fetched models: POST /api/copy, DELETE /api/delete."),
    ] = False
    store_responses: Annotated[
        bool,
        option("--store-responses", help="Keep answers of /v1/responses in memory, for previous_response_id; bounded."),
    ] = False


@dataclass(frozen=True)
class ClusterGroup(OptionGroup):
    """Replicas on other machines."""

    HEADING = "Cluster"

    ray: RayOption = None
    replicas: Annotated[
        int | None,
        option(minimum=1, maximum=100_000, help="Replicas on the cluster; by default one per GPU, or per machine."),
    ] = None


def serve(
    *,
    models: ServedModelsGroup,
    address: AddressGroup,
    limit: Annotated[
        list[str] | None,
        option("--limit", metavar="NAME=NUMBER", help="A limit, such as queued=64; docs/serving.md lists all of them."),
    ] = None,
    access_log: Annotated[bool, option("--access-log", help="Write a line for each request to stderr.")] = False,
    permissions: PermissionsGroup,
    cluster: ClusterGroup,
) -> None:
    """Serve models over HTTP: OpenAI's API and others, for many clients at once."""
    from glassformer.blueprints.drafts import no_head
    from glassformer.serving.http.app import create_app
    from glassformer.serving.http.security import Security
    from glassformer.serving.http.server import GlassServer, bound_socket
    from glassformer.serving.registry import Permissions, Registry

    if cluster.ray is not None and permissions != PermissionsGroup():
        raise SettingError("replicas on a cluster keep nothing and fetch nothing for clients. Leave out what allows it.")
    check_workers(cluster.ray, cluster.replicas, "--replicas")
    hosts, origins = tuple(address.allow_host or ()), tuple(address.allow_origin or ())
    security = Security(address.host, address.api_key, hosts, origins, tuple(address.trusted_proxy or ()))
    limits = parse_limits(limit)
    common.log_to_stderr()
    if access_log:
        logging.getLogger("glassformer.access").setLevel(logging.INFO)
    own_head = drafts_with_heads(models.assistant)
    make_sources = partial(model_sources, served_names(models), models.load, models.library, own_head)
    sources = make_sources()
    if own_head and not any(source.own_head for source in sources):
        raise SettingError(no_head(" and ".join(source.name for source in sources), None))
    pull = partial(pulled_source, models.load, models.library, own_head) if permissions.allow_pull else None
    allowed = Permissions(pull, permissions.allow_delete, store_responses=permissions.store_responses)
    with ExitStack() as stack:
        app: Starlette
        if cluster.ray is None:
            registry = Registry(sources, limits)
            registry.tell_loaded = note_models
            app = create_app(registry, limits, security, access_log=access_log, permissions=allowed)
        else:
            bound_socket(address.host, address.port).close()  # or refuse, before replicas are started
            app = stack.enter_context(cluster_app(cluster, make_sources, limits, security, models, access_log=access_log))
        server = GlassServer(
            app, host=address.host, port=address.port, tls_cert=address.tls_cert, tls_key=address.tls_key,
        )  # fmt: skip
        collect_as_usual()
        common.note(greeting(server.address, sources, limits, keyed=address.api_key is not None))
        server.run()
    common.note("stopped.")


@contextmanager
def cluster_app(
    cluster: ClusterGroup,
    make_sources: Callable[[], Sequence[ModelSource]],
    limits: Limits,
    security: Security,
    models: ServedModelsGroup,
    *,
    access_log: bool,
) -> Iterator[Starlette]:
    """The app in front of replicas on a cluster."""
    from glassformer.scale.cluster import allot, connect, machines

    with connect(cluster.ray) as ray:
        from glassformer.scale.front import create_front, deployed

        allotment = allot(machines(ray), cluster.replicas, models.gpus)
        settings = repr((models, limits, cluster.replicas))
        with ExitStack() as stack:
            with bars.spinner(f"starting {pluralize(allotment.workers, 'replica')}"):
                replicas = stack.enter_context(deployed(ray, make_sources, limits, allotment, settings))
            yield create_front(replicas, limits, security, access_log=access_log)


def drafts_with_heads(assistant: str | None) -> bool:
    """Whether models draft with their own heads, as --assistant says."""
    from glassformer.decoding.settings_table import OWN_HEAD

    if assistant not in (None, OWN_HEAD):
        raise SettingError(
            f"--assistant is {assistant!r}; a server's models draft with their own heads, mtp, or without it."
        )
    return assistant is not None


def parse_limits(pairs: list[str] | None) -> Limits:
    """The values of --limit."""
    from glassformer.serving.limits import Limits

    values = common.parse_pairs(pairs, "--limit", "queued=64")
    known = [field.name for field in fields(Limits)]
    for name in values:
        if name not in known:
            raise SettingError(f"there is no limit {name!r}.{did_you_mean(name, known)} There are: {', '.join(known)}.")
    return Limits(**values)


def model_sources(
    names: Sequence[str], load: Callable[[str], Model], library: Library | None = None, own_head: bool = False
) -> list[ModelSource]:
    """The models to serve, located and opened, so that a wrong name is noticed now; they are loaded when asked for."""
    sources = []
    for argument in names:
        alias, name = split_alias(argument)
        with bars.download_bar() as progress:
            source = model_source(name, load, library, own_head, progress)
        aliases = () if alias in (None, source.name) else (alias,)
        sources.append(replace(source, aliases=tuple(filter(None, aliases))))
    return sources


def model_source(
    name: str, load: Callable[[str], Model], library: Library | None, own_head: bool, progress: NamedProgress | None
) -> ModelSource:
    """A model to serve, located and opened; `own_head`: whether its own head drafts, if it has one."""
    from glassformer.engine.bridge.files import bridged
    from glassformer.model_files import open_model
    from glassformer.serving.registry import ModelSource, facts_of

    opened = bridged(open_model(name, progress=progress))
    _ = opened.config
    is_path = Path(name).exists()
    public = Path(name).stem if is_path else name  # clients need not know where it lies
    source = ModelSource(public, partial(load, name), facts=facts_of(opened), fetched_as=None if is_path else name)
    source = replace(source, own_head=own_head and opened.draft_head is not None)
    return source if library is None else replace(source, library=library)


def pulled_source(
    load: Callable[[str], Model], library: Library | None, own_head: bool, name: str, progress: NamedProgress
) -> ModelSource:
    """A model that a client asks for: fetched, or checked where it is here already."""
    from glassformer.checkpoint.locate import pull

    pull(name, progress)
    return model_source(name, load, library, own_head, progress)


def served_names(models: ServedModelsGroup) -> list[str]:
    """The models to serve; an adapter belongs to one of them."""
    if models.adapter and len(models.model or ()) != 1:
        raise SettingError("--adapter is for one model. Name it: -m BASE --adapter PATH; a peft folder can be a -m itself.")
    return models.model or default_models()


def default_models() -> list[str]:
    """The default model, and what else of the catalogue is on this machine."""
    from glassformer.checkpoint.catalogue import CATALOGUE
    from glassformer.checkpoint.locate import local_path

    first = os.environ.get("GLASS_MODEL") or common.DEFAULT_MODEL
    here = (name for name, entry in CATALOGUE.items() if entry.kind == "model" and local_path(name) is not None)
    return list(dict.fromkeys((first, *here)))


def split_alias(argument: str) -> tuple[str | None, str]:
    """ALIAS=NAME, or a name alone.

    >>> split_alias("gpt-4o=smollm2"), split_alias("smollm2"), split_alias("./a=b.gguf")
    (('gpt-4o', 'smollm2'), (None, 'smollm2'), (None, './a=b.gguf'))
    """
    alias, equals, name = argument.partition("=")
    if not equals or Path(argument).exists() or "/" in alias or os.sep in alias:
        return None, argument
    if not alias or not name:
        raise SettingError(f"--model {argument!r} is not [ALIAS=]NAME, such as gpt-4o=smollm2.")
    return alias, name


def greeting(address: str, sources: Sequence[ModelSource], limits: Limits, *, keyed: bool) -> str:
    """Where the server is, what it has, and a call to paste."""
    names = [source.name + "".join(f" = {alias}" for alias in source.aliases) for source in sources]
    body = to_json({"model": sources[0].name, "messages": [{"role": "user", "content": "Hello"}]})
    key = ' -H "Authorization: Bearer $GLASS_API_KEY"' if keyed else ""
    tokens = limits.cached_tokens
    cache = (
        f"{tokens:,} tokens" if tokens else "a third of the memory that is free then; --limit cached_tokens=NUMBER sets it"
    )
    who = "whoever has the key" if keyed else "this machine alone, without a key"
    return (
        f"serving {', '.join(names)}\n"
        f"at {address} for {who}; base URL for OpenAI's clients: {address}/v1\n"
        f"the studio, in a browser: {address}/\n"
        f"try: curl {address}/v1/chat/completions{key} -H 'Content-Type: application/json' -d {shlex.quote(body)}\n"
        f"KV cache of each model, when it is first asked: {cache}\n"
        "Ctrl-C stops."
    )
