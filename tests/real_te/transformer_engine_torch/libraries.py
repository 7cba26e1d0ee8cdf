"""Versions of the libraries below the extension."""


def get_cublasLt_version():
    """Of CUDA 13."""
    return 130000


def get_cudnn_version():
    """9.15."""
    return 91500
