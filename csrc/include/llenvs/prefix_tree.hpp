// Which KV blocks do the live trajectories of an evaluation share?
//
// A full block of `block_tokens` ids is identified by its content and by the chain of blocks before it, so two
// trajectories whose first b * block_tokens ids agree share b blocks. The partial block at a trajectory's end is always
// its own. Contents are compared id by id: a hash only says where to look.
//
// A block counts its holders: its children, and the trajectories whose last full block it is. So a trajectory holds its
// whole chain through that block, and the blocks that nobody else holds are the run up from there with one holder each.
//
// Not thread-safe. A call whose arguments are rejected changes nothing.

#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <unordered_map>
#include <vector>

namespace llenvs {

// A view of `size` values that somebody else owns.
template <typename T>
struct Span {
    const T* data;
    std::int64_t size;
};

using Ids = Span<std::int32_t>;
using TrajectoryKey = std::int64_t;

// No live trajectory has that key.
struct UnknownTrajectory : std::out_of_range {
    using std::out_of_range::out_of_range;
};

// A trajectory of that key is live already.
struct LiveTrajectory : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

class PrefixTree {
public:
    explicit PrefixTree(std::int64_t block_tokens);

    // Adds a trajectory; returns how many of its first tokens were resident already (full blocks only).
    std::int64_t insert(TrajectoryKey key, Ids ids);
    void append(TrajectoryKey key, Ids ids);
    // Appends ids[offsets[i] .. offsets[i + 1]) to trajectory keys[i], for every i in order.
    void append_many(Span<TrajectoryKey> keys, Ids ids, Span<std::int64_t> offsets);
    // Adds `child` with the parent's first `tokens` ids.
    void fork(TrajectoryKey parent, TrajectoryKey child, std::int64_t tokens);
    void fork(TrajectoryKey parent, TrajectoryKey child) { fork(parent, child, length(parent)); }
    // Drops the ids after the first `tokens`.
    void truncate(TrajectoryKey key, std::int64_t tokens);
    // Removes a trajectory; returns how many blocks nobody holds any more.
    std::int64_t release(TrajectoryKey key);

    // How many of the first `ids` are resident (full blocks only).
    std::int64_t match(Ids ids) const;
    // How many blocks inserting `ids` would add.
    std::int64_t blocks_needed(Ids ids) const;
    // How many blocks appending `tokens` ids that nobody else has would add.
    std::int64_t growth(TrajectoryKey key, std::int64_t tokens) const;

    bool contains(TrajectoryKey key) const { return trajectories_.count(key) != 0; }
    std::int64_t length(TrajectoryKey key) const { return find(key).length; }
    std::int64_t blocks(TrajectoryKey key) const { return blocks_of(length(key)); }
    // How many blocks `release` would free.
    std::int64_t own_blocks(TrajectoryKey key) const;
    std::vector<std::int32_t> tokens(TrajectoryKey key) const;

    std::int64_t block_tokens() const { return block_tokens_; }
    std::int64_t live() const { return static_cast<std::int64_t>(trajectories_.size()); }
    // Blocks of all live trajectories, a shared one counted once.
    std::int64_t distinct_blocks() const { return full_blocks_ + partial_blocks_; }
    // Bytes allocated. Freed blocks are kept for reuse, so this follows the most blocks that were ever live at once.
    std::size_t memory_bytes() const;

private:
    using BlockId = std::uint32_t;

    // The root stands for the empty prefix. It is no one's child, so its id also means "none".
    static constexpr BlockId kRoot = 0;

    struct Block {
        BlockId parent;
        BlockId next;  // in the bucket's chain, or in the free list
        std::uint32_t hash;
        std::uint32_t holders;
    };

    // `last_full` ends the chain of full blocks; the `length % block_tokens` ids after it lie in `tail`, a block that
    // is nobody's child until it is full.
    struct Trajectory {
        BlockId last_full;
        BlockId tail;
        std::int64_t length;
    };

    const Trajectory& find(TrajectoryKey key) const;
    Trajectory& find(TrajectoryKey key);
    void check_new(TrajectoryKey key) const;
    void check_ids(Ids ids) const;
    void check_prefix(TrajectoryKey key, const Trajectory& trajectory, std::int64_t tokens) const;

    std::int64_t blocks_of(std::int64_t length) const { return length / block_tokens_ + (partial(length) ? 1 : 0); }
    bool partial(std::int64_t length) const { return length % block_tokens_ != 0; }
    void set_length(Trajectory& trajectory, std::int64_t length);
    // Appends checked ids; returns how many tokens lie in blocks that were resident already.
    std::int64_t extend(Trajectory& trajectory, Ids ids);
    void shorten(Trajectory& trajectory, std::int64_t tokens);
    // Moves a full tail into the tree; returns whether the same block was there already.
    bool seal_tail(Trajectory& trajectory);

    std::int32_t* content(BlockId block) { return contents_.data() + std::size_t{block} * stride(); }
    const std::int32_t* content(BlockId block) const { return contents_.data() + std::size_t{block} * stride(); }
    std::size_t stride() const { return static_cast<std::size_t>(block_tokens_); }
    std::uint32_t hash_child(BlockId parent, const std::int32_t* ids) const;
    BlockId find_child(BlockId parent, std::uint32_t hash, const std::int32_t* ids) const;
    BlockId& bucket(std::uint32_t hash) { return buckets_[hash & (buckets_.size() - 1)]; }
    void link(BlockId block, BlockId parent, std::uint32_t hash);
    void unlink(BlockId block);
    BlockId allocate();
    void recycle(BlockId block);
    void grow_buckets();
    // Takes one holder away, and frees the blocks that are left without any; returns how many.
    std::int64_t let_go(BlockId block);

    std::int64_t block_tokens_;
    std::int64_t full_blocks_ = 0;
    std::int64_t partial_blocks_ = 0;
    BlockId free_ = kRoot;
    std::vector<Block> blocks_;
    std::vector<std::int32_t> contents_;  // block i's ids at i * block_tokens
    std::vector<BlockId> buckets_;        // a power of two, never fewer than blocks
    std::unordered_map<TrajectoryKey, Trajectory> trajectories_;
};

}  // namespace llenvs
