"""What goes in when weights are tied: a word's vector plus its cluster's, or its own alone."""

import torch

from tests.layers import WIDTH, make, with_own_words


def test_a_word_goes_in_as_its_vector_and_its_clusters_or_its_own_alone():
    head = with_own_words(dtype=torch.float64)
    cluster_of = head.partition.cluster_of.tolist()
    tokens = torch.tensor([[0, 1, 4], [2, 1, 52]])
    found = head.embed(tokens)
    assert found.shape == (2, 3, WIDTH)
    weights = torch.randn_like(found)
    (found * weights).sum().backward()
    of_word, of_cluster = torch.zeros_like(head.weight), torch.zeros_like(head.cluster_weight)
    for place in [(row, column) for row in range(2) for column in range(3)]:
        word = int(tokens[place])
        expected = head.weight[word]
        of_word[word] += weights[place]
        if word % 4:  # it stands in a cluster
            expected = expected + head.cluster_weight[cluster_of[word]]
            of_cluster[cluster_of[word]] += weights[place]
        torch.testing.assert_close(found[place], expected)
    torch.testing.assert_close(head.weight.grad, of_word)
    torch.testing.assert_close(head.cluster_weight.grad, of_cluster)


def test_a_moved_word_goes_in_with_its_new_cluster():
    head = make(53, own_words=3)
    word = int(head.partition.members(0)[0])
    before = head.embed(torch.tensor(word)) - head.cluster_weight[0]
    head.partition.assign_(head.partition.cluster_of.index_fill(0, torch.tensor([word]), 5))
    torch.testing.assert_close(head.embed(torch.tensor(word)), before + head.cluster_weight[5])
