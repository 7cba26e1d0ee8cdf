"""The forward step of GPT models."""

import torch


def _loss(output):
    loss = output.float().mean()
    return loss, {"lm loss": loss.detach().clone()}


def forward_step(state, data_iterator, model):
    """One micro-batch through the model."""
    tokens = next(data_iterator)
    positions = torch.arange(tokens.shape[1]).unsqueeze(0)
    mask = torch.ones(1, 1, tokens.shape[1], tokens.shape[1]).triu(1).bool()
    if state.train_state.step == getattr(state.cfg.train, "fails_at_step", None):
        raise RuntimeError(state.cfg.train.fails_with)
    return model(tokens, positions, mask, labels=tokens), _loss
