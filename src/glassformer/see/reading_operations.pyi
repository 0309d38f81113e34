"""Made by tools/operation_texts.py."""

from glassformer.see.attention import attention as _reading_attention
from glassformer.see.attention import attention_maps as _reading_attention_maps
from glassformer.see.attention import heads as _reading_heads
from glassformer.see.attribution import attribution as _reading_attribution
from glassformer.see.attribution_graph import graph as _reading_graph
from glassformer.see.circuits import circuit as _reading_circuit
from glassformer.see.experts import experts as _reading_experts
from glassformer.see.explain.operations import explain as _reading_explain
from glassformer.see.features import features as _reading_features
from glassformer.see.inside.compute import inside as _reading_inside
from glassformer.see.lens import lens as _reading_lens
from glassformer.see.saliency import gradients as _reading_gradients
from glassformer.see.saliency import saliency as _reading_saliency
from glassformer.see.trace import trace as _reading_trace

class ReadingOperations:
    attention = _reading_attention
    attention_maps = _reading_attention_maps
    attribution = _reading_attribution
    circuit = _reading_circuit
    experts = _reading_experts
    explain = _reading_explain
    features = _reading_features
    gradients = _reading_gradients
    graph = _reading_graph
    heads = _reading_heads
    inside = _reading_inside
    lens = _reading_lens
    saliency = _reading_saliency
    trace = _reading_trace
