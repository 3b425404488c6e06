"""tllib's built-in methods behind the contract of :mod:`tllib_ext.methods.base`."""
