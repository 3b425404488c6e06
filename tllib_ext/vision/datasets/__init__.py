"""Label splits, image lists, views and label noise."""
