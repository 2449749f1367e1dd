"""Models that others have written, in `DataParallel` beside the bare module. Run by hand:

    pip install timm transformers
    python tests/model_zoos.py timm transformers

Of timm a small model of each family, of transformers one of each type with a tiny configuration
where it takes tokens or images. Outputs, gradients and buffers of two replicas are compared with
those of the bare module, in float64 and in training mode, with `sync_batchnorm=True`. Models that
draw random numbers, or that this script cannot make or call, are counted and left out.
"""

import copy
import inspect
import signal
import sys
import warnings
from collections import Counter

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fastreduce import DataParallel

EXAMPLES = 4  # two for each replica: torch's own BatchNorm is wrong for some batches of one
LIMIT_S, MOST_PARAMETERS = 150, 60_000_000
SMALL = ("atto", "femto", "pico", "nano", "tiny", "mini", "small", "18", "_0", "_s")
SIZES = {  # a tiny model, in the words of most configurations of transformers
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "hidden_dim"), 48),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "n_inner"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("head_dim", "d_kv", "v_head_dim", "patch_size"), 8),
    **{"vocab_size": 99, "num_key_value_heads": 2, "num_experts_per_tok": 2, "image_size": 32},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
}


def of_timm():
    import timm
    from timm.models._registry import _module_to_models

    def smallest(family):
        order = sorted(_module_to_models[family], key=lambda x: (not any(s in x for s in SMALL), x))
        return min(order[:3], key=lambda x: parameters_of(on_meta(timm.create_model, x)))

    def make(family):
        net = timm.create_model(smallest(family), num_classes=7)
        channels, *usual = net.default_cfg.get("input_size", (3, 224, 224))
        size = usual if net.default_cfg.get("fixed_input_size") else (128, 128)
        return net, (torch.randn(EXAMPLES, channels, *size).double(),), {}

    return {family: make for family in sorted(_module_to_models)}


def of_transformers():
    import transformers
    from transformers.models.auto import modeling_auto as auto

    transformers.logging.set_verbosity_error()

    def make(kind):
        config_class = transformers.CONFIG_MAPPING[kind]
        usual = config_class().to_dict()
        names = inspect.signature(config_class).parameters.keys() | usual.keys()
        dropped = {x: 0.0 for x in names if "drop" in x and isinstance(usual.get(x), float)}
        config = config_class(**{k: v for k, v in SIZES.items() if k in names}, **dropped)
        known = (auto.MODEL_FOR_CAUSAL_LM_MAPPING, auto.MODEL_FOR_MASKED_LM_MAPPING)
        classes = next(x for x in (*known, auto.MODEL_MAPPING) if type(config) in x)[type(config)]
        model = classes[0] if isinstance(classes, tuple) else classes
        check_size(on_meta(model, config))
        inputs = {
            "input_ids": torch.randint(3, 90, (EXAMPLES, 10)),
            "pixel_values": torch.randn(EXAMPLES, 3, 32, 32).double(),
        }
        given = {model.main_input_name: inputs[model.main_input_name]}
        if "use_cache" in names:
            given["use_cache"] = False
        if config.is_encoder_decoder:
            given["decoder_input_ids"] = inputs["input_ids"].flip(0)
        return model(config), (), given

    return dict.fromkeys(sorted(transformers.CONFIG_MAPPING), make)


def on_meta(make, *args):
    with torch.device("meta"):
        return make(*args)


def parameters_of(net):
    return sum(parameter.numel() for parameter in net.parameters())


def check_size(net):
    if parameters_of(net) > MOST_PARAMETERS:
        raise ValueError(f"{parameters_of(net):,} parameters")


def tensors_of(output):
    leaves = pytree.tree_leaves(output.to_tuple() if hasattr(output, "to_tuple") else output)
    return [x for x in leaves if isinstance(x, torch.Tensor) and x.is_floating_point()]


def step(model, args, kwargs):
    outputs = tensors_of(model(*args, **kwargs))
    sum(x.square().mean() for x in outputs).backward()
    return outputs


def gradients_of(model):
    return [parameter.grad for parameter in model.parameters()]


def far(ours, wanted):
    if ours is None or wanted is None:
        return ours is not wanted
    scale = 1 + wanted.abs().max() if wanted.numel() else 1
    return ours.shape != wanted.shape or bool(((ours - wanted).abs() > 1e-7 * scale).any())


def compared(net, args, kwargs):
    """In a word or two."""
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    bare, again = copy.deepcopy(net), copy.deepcopy(net)
    try:
        wanted = step(bare, args, kwargs)
    except Exception as error:
        return f"left out: the bare module raises {type(error).__name__}"
    drawn = map(far, step(again, args, kwargs), wanted)
    if any(drawn) or any(map(far, gradients_of(again), gradients_of(bare))):
        return "left out: it draws"
    model = DataParallel(net, ["cpu"] * 2, sync_batchnorm=True)
    outputs = step(model, args, kwargs)
    if any(map(far, outputs, wanted)):
        return f"OTHER OUTPUTS of shapes {shapes(outputs)}, the bare module's {shapes(wanted)}"
    for (name, _), *both in zip(
        bare.named_parameters(), gradients_of(model), gradients_of(bare), strict=True
    ):
        if far(*both):
            return f"OTHER GRADIENT of {name}"
    for (name, buffer), ours in zip(bare.named_buffers(), model.buffers(), strict=True):
        if far(ours.double(), buffer.double()):
            return f"OTHER BUFFER {name}"
    return "the same"


def shapes(tensors):
    return [tuple(x.shape) for x in tensors]


def out_of_time(*_):
    raise TimeoutError


def main(zoos):
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, out_of_time)
    for zoo in zoos:
        found = Counter()
        for name, make in {"timm": of_timm, "transformers": of_transformers}[zoo]().items():
            torch.manual_seed(0)
            signal.alarm(LIMIT_S)
            try:
                net, args, kwargs = make(name)
                check_size(net)
            except Exception as error:
                words = f"left out: not made, {type(error).__name__}"
            else:
                try:
                    words = compared(net.double().train(), args, kwargs)
                except Exception as error:
                    words = f"RAISED {type(error).__name__}: {error}"
            finally:
                signal.alarm(0)
            found[" ".join(words.split()[:2])] += 1
            print(f"{zoo} {name}: {words}", flush=True)
        print(f"{zoo}: {dict(found)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
