"""The built-in plugins: a table of plain data, found through the entry point group "liftcore.plugins"."""

__all__ = ["PROTOCOL", "TABLE"]

#: The version of `liftcore.protocol` for which these plugins are written.
PROTOCOL = 1

#: What is provided: "module:attribute" by kind and name. Nothing is imported before it is asked for.
TABLE = {
    ("transform", "vmap"): "liftcore_plugins.transforms.vmap:vmap",
    ("transform", "scan"): "liftcore_plugins.transforms.scan:scan",
    ("transform", "grad"): "liftcore_plugins.transforms.grad:grad",
    ("transform", "value_and_grad"): "liftcore_plugins.transforms.grad:value_and_grad",
    ("transform", "jit"): "liftcore_plugins.transforms.jit:jit",
    ("transform", "remat"): "liftcore_plugins.transforms.remat:remat",
    ("case", "vmap"): "liftcore_plugins.transforms.vmap:case",
    ("case", "scan"): "liftcore_plugins.transforms.scan:case",
    ("case", "grad"): "liftcore_plugins.transforms.grad:case",
    ("case", "value_and_grad"): "liftcore_plugins.transforms.grad:value_and_grad_case",
    ("case", "jit"): "liftcore_plugins.transforms.jit:case",
    ("case", "remat"): "liftcore_plugins.transforms.remat:case",
    ("lift", "StateAxes"): "liftcore_plugins.lifts.state_axes:StateAxes",
    ("lift", "DiffState"): "liftcore_plugins.lifts.diff_state:DiffState",
    ("family", "liftcore_plugins"): "liftcore_plugins.families.objects:family",
    ("family", "equinox"): "liftcore_plugins.families.equinox:family",
    ("family", "pytree"): "liftcore_plugins.families.pytree:family",
    ("family_case", "liftcore_plugins"): "liftcore_plugins.families.objects:case",
    ("family_case", "equinox"): "liftcore_plugins.families.equinox:case",
    ("family_case", "pytree"): "liftcore_plugins.families.pytree:case",
    ("object", "Module"): "liftcore_plugins.objects:Module",
    ("object", "Variable"): "liftcore_plugins.objects:Variable",
    ("object", "Param"): "liftcore_plugins.objects:Param",
    ("object", "BatchStat"): "liftcore_plugins.objects:BatchStat",
    ("object", "Cache"): "liftcore_plugins.objects:Cache",
    ("object", "Intermediate"): "liftcore_plugins.objects:Intermediate",
    ("object", "RngKey"): "liftcore_plugins.objects:RngKey",
    ("object", "RngCount"): "liftcore_plugins.objects:RngCount",
    ("object", "Rngs"): "liftcore_plugins.objects:Rngs",
    ("object", "split_rngs"): "liftcore_plugins.objects:split_rngs",
    ("object", "restore_rngs"): "liftcore_plugins.objects:restore_rngs",
}
