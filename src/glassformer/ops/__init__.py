"""Ops: the equations that blueprints are made of, one file per kind.

A kind's file has everything about it: what shape comes out, its value in numpy, its formula and arithmetic for people who
step inside, how it is linearised for attribution, how engines run it, how it is divided among ranks. Whoever walks a
blueprint asks its ops, and knows no kinds. Needs no torch.
"""
