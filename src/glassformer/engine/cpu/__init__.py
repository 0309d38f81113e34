"""The native CPU engine: blueprints lowered to a program of C++ kernels. Needs no torch."""
