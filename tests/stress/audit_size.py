"""Time and memory of the audit of many samples: Gaussian classes, a share of the labels wrong.

OMP_NUM_THREADS=2 python tests/stress/audit_size.py --samples 1000000 --classes 1000
"""

import argparse
import resource
import time

import numpy as np

from tllib_ext import find_label_issues
from tllib_ext.labels.audit import detection_quality


def main() -> None:
    """Draw, audit, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--rate", type=float, default=0.2, help="share of wrong labels, symmetric")
    parser.add_argument("--spread", type=float, default=3.0, help="standard deviation within a class; the means have 1")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    true = rng.integers(args.classes, size=args.samples)
    features = rng.standard_normal((args.classes, args.dim), dtype=np.float32)[true]
    for start in range(0, args.samples, 8192):
        part = features[start : start + 8192]
        part += args.spread * rng.standard_normal(part.shape, dtype=np.float32)
    shift = rng.integers(1, args.classes, size=args.samples)
    given = np.where(rng.random(args.samples) < args.rate, (true + shift) % args.classes, true)
    wall, cpu = time.perf_counter(), time.process_time()
    found = find_label_issues(features, given)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{args.samples} x {args.dim}, {args.classes} classes: {wall:.0f} s, {cpu:.0f} CPU s, peak {peak:.2f} GB")
    print(f"wrong {np.mean(given != true):.3f}, {detection_quality(found.suspicion, given != true)}, "
          f"corrected {np.count_nonzero(found.corrected != given)}, "
          f"suggestion right {np.mean(found.suggested == true):.4f}")  # fmt: skip
    print(found.summary().splitlines()[0])


if __name__ == "__main__":
    main()
