"""Made by tools/operation_texts.py."""

from collections.abc import Callable
from typing import Concatenate, Generic, ParamSpec, TypeVar

from glassformer.see.activations import Activations
from glassformer.see.attention import attention as _reading_attention
from glassformer.see.attention import attention_maps as _reading_attention_maps
from glassformer.see.attention import heads as _reading_heads
from glassformer.see.attribution import attribution_of_run as _run_attribution
from glassformer.see.attribution_graph import graph as _reading_graph
from glassformer.see.caching import caching as _run_caching
from glassformer.see.circuits import Circuits
from glassformer.see.circuits import circuit as _reading_circuit
from glassformer.see.compare import compare_prompts as _model_compare
from glassformer.see.experts import experts as _reading_experts
from glassformer.see.explain.operations import explain_answer as _model_explain
from glassformer.see.explain.operations import explain_run as _run_explain
from glassformer.see.features import dictionary as _model_dictionary
from glassformer.see.features import feature_dictionaries as _model_feature_dictionaries
from glassformer.see.features import features as _reading_features
from glassformer.see.features import train_features as _model_train_features
from glassformer.see.inside.compute import inside as _reading_inside
from glassformer.see.journey.compute import look as _model_look
from glassformer.see.journey.view import Journey
from glassformer.see.lens import lens_of_run as _run_lens
from glassformer.see.lens import load_lens as _model_load_lens
from glassformer.see.model_description import SiteNames
from glassformer.see.parameters import parameters as _model_parameters
from glassformer.see.patching.operations import attribution_patch as _model_attribution_patch
from glassformer.see.patching.operations import patch as _model_patch
from glassformer.see.patching.operations import patch_pairs as _model_patch_pairs
from glassformer.see.patching.operations import patch_path as _model_patch_path
from glassformer.see.probes import load_probes as _model_load_probes
from glassformer.see.reading import read as _model_read
from glassformer.see.reading import read_ids as _model_read_ids
from glassformer.see.readings import read_many as _model_read_many
from glassformer.see.receipt import Receipt
from glassformer.see.recording import Recording
from glassformer.see.recording import record as _run_record
from glassformer.see.recording import widget as _run_widget
from glassformer.see.run import page as _run_page
from glassformer.see.saliency import gradients as _reading_gradients
from glassformer.see.saliency import saliency as _reading_saliency
from glassformer.see.steering import steering as _model_steering
from glassformer.see.steering import steering_vectors as _model_steering_vectors
from glassformer.see.sweep import model_strategies as _model_strategies
from glassformer.see.sweep import sweep as _run_sweep
from glassformer.see.tokens import VocabularySizes
from glassformer.see.tokens import model_batch as _model_batch
from glassformer.see.tokens import model_tokens as _model_tokens
from glassformer.see.trace import Trace
from glassformer.see.tree import tree as _model_tree
from glassformer.see.why import Whys
from glassformer.see.why import why_of_run as _run_why

P = ParamSpec("P")
R = TypeVar("R")

class _OfReading(Generic[P, R]):
    """The reading's method, of what has a reading."""

    def __init__(self, function: Callable[Concatenate[Activations, P], R]) -> None: ...
    def __get__(self, instance: object, cls: type | None = None) -> Callable[P, R]: ...

class ModelOperations:
    attribution_patch = _model_attribution_patch
    batch = _model_batch
    @property
    def circuits(self) -> Circuits: ...
    compare = _model_compare
    dictionary = _model_dictionary
    explain = _model_explain
    feature_dictionaries = _model_feature_dictionaries
    load_lens = _model_load_lens
    load_probes = _model_load_probes
    look = _model_look
    parameters = _model_parameters
    patch = _model_patch
    patch_pairs = _model_patch_pairs
    patch_path = _model_patch_path
    read = _model_read
    read_ids = _model_read_ids
    read_many = _model_read_many
    @property
    def sites(self) -> SiteNames: ...
    steering = _model_steering
    steering_vectors = _model_steering_vectors
    strategies = _model_strategies
    tokens = _model_tokens
    train_features = _model_train_features
    tree = _model_tree
    @property
    def vocabulary(self) -> VocabularySizes: ...

class RunOperations:
    attribution = _run_attribution
    caching = _run_caching
    explain = _run_explain
    @property
    def journey(self) -> Journey: ...
    lens = _run_lens
    page = _run_page
    @property
    def receipt(self) -> Receipt: ...
    record = _run_record
    @property
    def recording(self) -> Recording: ...
    sweep = _run_sweep
    @property
    def trace(self) -> Trace: ...
    why = _run_why
    @property
    def whys(self) -> Whys: ...
    widget = _run_widget
    attention = _OfReading(_reading_attention)
    attention_maps = _OfReading(_reading_attention_maps)
    circuit = _OfReading(_reading_circuit)
    experts = _OfReading(_reading_experts)
    features = _OfReading(_reading_features)
    gradients = _OfReading(_reading_gradients)
    graph = _OfReading(_reading_graph)
    heads = _OfReading(_reading_heads)
    inside = _OfReading(_reading_inside)
    saliency = _OfReading(_reading_saliency)
