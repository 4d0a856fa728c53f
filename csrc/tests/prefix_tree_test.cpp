// What the tree promises, without Python: `ctest` runs this.

#include "llenvs/prefix_tree.hpp"

#include <cstdio>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <utility>

namespace {

using llenvs::PrefixTree;
using Tokens = std::vector<std::int32_t>;
using Longs = std::vector<std::int64_t>;

int failures = 0;

void check(bool ok, const std::string& claim) {
    if (!ok) {
        std::fprintf(stderr, "FAILED: %s\n", claim.c_str());
        ++failures;
    }
}

void check_equal(std::int64_t got, std::int64_t wanted, const std::string& claim) {
    check(got == wanted, claim + ": got " + std::to_string(got) + ", wanted " + std::to_string(wanted));
}

template <typename Error>
void check_throws(const std::function<void()>& call, const std::string& part, const std::string& claim) {
    try {
        call();
        check(false, claim + ": nothing was thrown");
    } catch (const Error& error) {
        check(std::string(error.what()).find(part) != std::string::npos, claim + ": message is " + error.what());
    }
}

template <typename T>
llenvs::Span<T> view(const std::vector<T>& values) {
    return {values.data(), static_cast<std::int64_t>(values.size())};
}

Tokens counting(std::int32_t first, int count) {
    Tokens ids;
    for (int i = 0; i < count; ++i) ids.push_back(first + i);
    return ids;
}

void a_shared_prefix_is_counted_once() {
    PrefixTree tree(4);
    check_equal(tree.insert(1, view(counting(0, 10))), 0, "nothing is resident at first");
    check_equal(tree.insert(2, view(counting(0, 9))), 8, "two full blocks are resident");
    check_equal(tree.distinct_blocks(), 4, "two shared blocks and two tails");
    check_equal(tree.own_blocks(1), 1, "only the tail is its own");
    check_equal(tree.release(2), 1, "release frees the tail alone");
    check_equal(tree.release(1), 3, "the last holder frees all");
    check_equal(tree.distinct_blocks(), 0, "an empty tree has no blocks");
}

void equal_content_after_different_blocks_is_not_shared() {
    PrefixTree tree(2);
    const Tokens one{1, 1, 7, 7}, other{2, 2, 7, 7};
    tree.insert(1, view(one));
    check_equal(tree.insert(2, view(other)), 0, "no first block in common");
    check_equal(tree.distinct_blocks(), 4, "the second blocks are different ones");
}

void a_tail_that_fills_up_joins_the_same_block() {
    PrefixTree tree(3);
    tree.insert(1, view(counting(5, 2)));
    tree.insert(2, view(counting(5, 2)));
    check_equal(tree.distinct_blocks(), 2, "partial blocks are never shared");
    const Tokens last{7};
    tree.append(1, view(last));
    tree.append(2, view(last));
    check_equal(tree.distinct_blocks(), 1, "full ones are");
}

void fork_and_truncate_keep_the_ids() {
    PrefixTree tree(4);
    tree.insert(1, view(counting(0, 11)));
    tree.fork(1, 2, 6);
    check(tree.tokens(2) == counting(0, 6), "a fork has the parent's first ids");
    tree.fork(1, 3);
    tree.truncate(1, 5);
    check(tree.tokens(1) == counting(0, 5), "truncate keeps the first ids");
    check(tree.tokens(3) == counting(0, 11), "truncate leaves forks alone");
    check_equal(tree.distinct_blocks(), 5, "two full blocks, three tails");
}

void bad_arguments_are_named_and_change_nothing() {
    PrefixTree tree(4);
    const Tokens ids = counting(0, 6), negative{3, -8};
    tree.insert(1, view(ids));
    check_throws<std::invalid_argument>([] { PrefixTree(0); }, "block_tokens is 0", "blocks of no tokens");
    check_throws<llenvs::UnknownTrajectory>([&] { tree.append(9, view(ids)); }, "trajectory 9", "unknown key");
    check_throws<llenvs::LiveTrajectory>([&] { tree.insert(1, view(ids)); }, "trajectory 1", "key in use");
    check_throws<llenvs::LiveTrajectory>([&] { tree.fork(1, 1); }, "trajectory 1", "fork onto itself");
    check_throws<std::invalid_argument>([&] { tree.insert(2, view(negative)); }, "-8 at position 1", "negative id");
    check_throws<std::invalid_argument>([&] { tree.truncate(1, 7); }, "it has 6", "truncate beyond the end");
    check_throws<std::invalid_argument>([&] { tree.fork(1, 2, -1); }, "first -1", "fork of fewer than none");
    const Longs keys{1, 9}, offsets{0, 3, 6}, falling{0, 7, 6};
    check_throws<llenvs::UnknownTrajectory>([&] { tree.append_many(view(keys), view(ids), view(offsets)); },
                                            "trajectory 9", "unknown key in a batch");
    check_throws<std::invalid_argument>([&] { tree.append_many(view(keys), view(ids), view(falling)); },
                                        "without a fall", "offsets that fall");
    check_throws<std::invalid_argument>([&] { tree.append_many(view(keys), view(ids), view(keys)); }, "2 values",
                                        "too few offsets");
    check_equal(tree.live(), 1, "rejected calls add nobody");
    check(tree.tokens(1) == ids, "rejected calls change nobody");
}

void blocks_whose_hashes_collide_stay_apart() {
    // Among 300,000 first blocks about ten pairs have one 32-bit hash; so have the second ones, whose content is equal.
    PrefixTree tree(2);
    std::mt19937 random(1);
    std::set<std::pair<std::int32_t, std::int32_t>> first_blocks;
    for (int key = 0; key < 300000; ++key) {
        const Tokens ids{static_cast<std::int32_t>(random() >> 1), static_cast<std::int32_t>(random() >> 1), 7, 7};
        tree.insert(key, view(ids));
        first_blocks.emplace(ids[0], ids[1]);
    }
    check_equal(tree.distinct_blocks(), 2 * static_cast<std::int64_t>(first_blocks.size()),
                "a first block for every content, a second one for every first");
}

void freed_blocks_are_used_again() {
    PrefixTree tree(8);
    std::size_t first_round_bytes = 0;
    std::mt19937 random(2);
    for (int round = 0; round < 30; ++round) {
        for (int key = 0; key < 200; ++key) {
            tree.insert(key, view(counting(static_cast<std::int32_t>(random() >> 2), 100)));
        }
        for (int key = 0; key < 200; ++key) tree.release(key);
        if (round == 0) first_round_bytes = tree.memory_bytes();
    }
    check_equal(tree.distinct_blocks(), 0, "all blocks were freed");
    check_equal(static_cast<std::int64_t>(tree.memory_bytes()), static_cast<std::int64_t>(first_round_bytes),
                "thirty rounds need the memory of one");
}

}  // namespace

int main() {
    a_shared_prefix_is_counted_once();
    equal_content_after_different_blocks_is_not_shared();
    a_tail_that_fills_up_joins_the_same_block();
    fork_and_truncate_keep_the_ids();
    bad_arguments_are_named_and_change_nothing();
    blocks_whose_hashes_collide_stay_apart();
    freed_blocks_are_used_again();
    if (failures == 0) std::puts("all checks passed");
    return failures == 0 ? 0 : 1;
}
