"""The kinds of input of ``dualfocal evaluate``, one file each."""
