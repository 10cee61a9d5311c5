"""Measures by name: adding one is a file beside this one and a line here.

Accuracy, class-wise accuracy, loss, forgetting, consistency, bytes and seconds are recorded every
round; those below when they are asked for.
"""

from fedrecall.specs import Registry

_ALWAYS = ("accuracy", "class_accuracy", "loss", "forgetting", "consistency", "bytes", "seconds")

MEASURES = Registry(
    "measure",
    {
        "locals": "fedrecall.measures.locals:Locals",
        "personal": "fedrecall.measures.personal:Personal",
        "divergence": "fedrecall.measures.divergence:Divergence",
        "diversity": "fedrecall.measures.diversity:Diversity",
        "alignment": "fedrecall.measures.alignment:Alignment",
        "confusion": "fedrecall.measures.confusion:Confusion",
        "sites": "fedrecall.measures.sites:Sites",
        "fairness": "fedrecall.measures.fairness:Fairness",
        "chain": "fedrecall.measures.chain:Chain",
        "landscape": "fedrecall.measures.landscape:Landscape",
    },
    base="fedrecall.measures.moment:Measure",
    instead={
        **dict.fromkeys(_ALWAYS, "every run records it."),
        "drift": "it is part of the measure chain.",
        "credibility": "it is part of the measure confusion.",
    },
)
