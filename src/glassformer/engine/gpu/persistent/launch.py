"""The persistent kernel's parameter and error codes, as kernel.cu declares them."""

from __future__ import annotations

import ctypes
from enum import IntEnum


class KernelError(IntEnum):
    NONE = 0
    TIMED_OUT = 1


NO_ID = -1  # chosen where scores are no numbers


class Launch(ctypes.Structure):
    """What one launch is given; see the comments at kernel.cu's Launch."""

    _fields_ = [
        ("stream", ctypes.c_void_p),
        ("stream_stride", ctypes.c_uint64),
        ("embedding", ctypes.c_void_p),
        ("embedding_scales", ctypes.c_void_p),
        ("embedding_outer_scales", ctypes.c_void_p),
        ("embedding_high_bits", ctypes.c_void_p),
        ("norms", ctypes.c_void_p),
        ("head_norms", ctypes.c_void_p),
        ("qkv_bias", ctypes.c_void_p),
        ("rotation", ctypes.c_void_p),
        ("pool", ctypes.c_void_p),
        ("page_table", ctypes.c_void_p),
        ("exchange", ctypes.c_void_p),
        ("given_ids", ctypes.c_void_p),
        ("stop_ids", ctypes.c_void_p),
        ("chosen_ids", ctypes.c_void_p),
        ("scores", ctypes.c_void_p),
        ("residuals", ctypes.c_void_p),
        ("status", ctypes.c_void_p),
        ("patience", ctypes.c_longlong),
        ("start", ctypes.c_int),
        ("steps", ctypes.c_int),
        ("given", ctypes.c_int),
        ("stops", ctypes.c_int),
        ("scores_from", ctypes.c_int),
        ("tag", ctypes.c_uint32),
        ("absent_block", ctypes.c_int),
    ]
