"""What the authors' code imports of torchvision."""


def get_image_backend():
    """There is one."""
    return "PIL"
