"""The formats of prediction files, read and written without pickle."""
