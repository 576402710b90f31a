"""Recurrent layers: where the reset gate multiplies, initial states, both directions, dynamic batches."""

import pytest
import torch
from torch import nn


class Gru(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.gru = nn.GRU(4, 5, num_layers=2, batch_first=True, **options)
        with torch.no_grad():
            for name, parameter in self.gru.named_parameters():
                if "bias_hh" in name:
                    parameter.add_(1.5)  # makes visible whether the reset gate multiplies the bias too

    def forward(self, x, h):
        y, last = self.gru(x, h)
        return y, last, self.gru(x)[0]


# https://github.com/pytorch/pytorch/issues/189225
@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_reset_gate_multiplies_after_the_recurrent_product(everywhere, bidirectional):
    torch.manual_seed(10)
    batch = torch.export.Dim("batch", min=1, max=8)
    args = lambda n: (torch.randn(n, 3, 4), torch.randn(4 if bidirectional else 2, n, 5))  # noqa: E731
    everywhere(
        Gru(bidirectional=bidirectional).eval(),
        args(2),
        args(1),
        args(5),
        dynamic_shapes=({0: batch}, {1: batch}),
    )


# https://github.com/microsoft/onnxruntime/issues/19270
def test_states_of_lstm_and_rnn(everywhere):
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(3, 4, bidirectional=True, batch_first=True)
            self.projected = nn.LSTM(3, 4, proj_size=2, bias=False)
            self.rnn = nn.RNN(3, 4, nonlinearity="relu")
            self.cells = nn.LSTMCell(3, 4), nn.GRUCell(3, 4)
            self.lstm_cell, self.gru_cell = self.cells

        def forward(self, x, h, c):
            first = x[:, 0]
            return (
                (self.lstm(x), self.lstm(x, (h, c))),
                (self.projected(x.transpose(0, 1)), self.rnn(x.transpose(0, 1), h[:1])),
                (self.lstm_cell(first, (h[0], c[0])), self.lstm_cell(first), self.gru_cell(first, h[0])),
            )

    torch.manual_seed(11)
    everywhere(Layers().eval(), (torch.randn(2, 3, 3), torch.randn(2, 2, 4), torch.randn(2, 2, 4)))


class TwoWay(nn.Module):
    def __init__(self):
        super().__init__()
        self.forwards = nn.LSTM(3, 4, batch_first=True)
        self.backwards = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x):
        ahead, _ = self.forwards(x)
        back, _ = self.backwards(x.flip(1))
        return torch.cat([ahead, back.flip(1)], -1)


# https://github.com/pytorch/pytorch/issues/191855, https://github.com/pytorch/pytorch/issues/126339
def test_two_ways_built_by_hand(everywhere):
    """Batches may vary. A time axis that varies is PyTorch's to refuse: the command's tests have what we say then."""
    torch.manual_seed(12)
    batch = torch.export.Dim("batch", min=1, max=16)
    everywhere(
        TwoWay().eval(),
        (torch.randn(2, 7, 3),),
        (torch.randn(1, 7, 3),),
        (torch.randn(9, 7, 3),),
        dynamic_shapes=({0: batch},),
    )
