"""What clients learn from: data sets, partitions, augmentation."""
