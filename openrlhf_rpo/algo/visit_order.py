"""In which order questions are visited, and how soon a question comes back.

``lag`` 0: whole episodes, each in a keyed order of its own (the paper; upstream's epochs). A question comes back after all
the others, so the first replay waits for a full pass over the data.

``lag`` N > 0: visit v of the i-th question is due at time i + v * N, so that a question comes back after N others have been
visited for the first time, ``episodes`` times in all. Replays start after N questions, their prefixes are fresh, and
once under way 1 / episodes of the visits are first ones. Example, 4 questions a b c d, 2 episodes::

    lag 0:  a b c d | d a c b        lag 2:  a b a c b d c d

Degenerate cases: one episode is the same either way; lag >= the number of questions is whole episodes in one order.
"""

from openrlhf_rpo.algo.draws import episode_order


def visit_order(seed: int, n_questions: int, episodes: int, lag: int) -> list[int]:
    """Indices of the questions in the order of all their visits; ``n_questions * episodes`` entries."""
    if lag == 0:
        return [i for episode in range(episodes) for i in episode_order(seed, episode, n_questions)]
    order = episode_order(seed, 0, n_questions)
    due = sorted((i + visit * lag, -visit, i) for visit in range(episodes) for i in range(n_questions))
    return [order[i] for _, _, i in due]
