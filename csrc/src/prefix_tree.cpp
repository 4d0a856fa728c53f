#include "llenvs/prefix_tree.hpp"

#include <algorithm>
#include <limits>
#include <string>

namespace llenvs {

namespace {

constexpr std::int64_t kMaxBlockTokens = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kMaxBlocks = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kFirstBuckets = 16;

std::string text(std::int64_t value) { return std::to_string(value); }

}  // namespace

PrefixTree::PrefixTree(std::int64_t block_tokens) : block_tokens_(block_tokens), buckets_(kFirstBuckets, kRoot) {
    if (block_tokens < 1 || block_tokens > kMaxBlockTokens) {
        throw std::invalid_argument("block_tokens is " + text(block_tokens) +
                                    ": give the engine's KV block size, 1 to " + text(kMaxBlockTokens));
    }
    allocate();  // the root
}

// What callers ask ----------------------------------------------------------------------------------------------------

std::int64_t PrefixTree::insert(TrajectoryKey key, Ids ids) {
    check_new(key);
    check_ids(ids);
    Trajectory& trajectory = trajectories_[key] = Trajectory{kRoot, allocate(), 0};
    ++blocks_[kRoot].holders;
    return extend(trajectory, ids);
}

void PrefixTree::append(TrajectoryKey key, Ids ids) {
    Trajectory& trajectory = find(key);
    check_ids(ids);
    extend(trajectory, ids);
}

void PrefixTree::append_many(Span<TrajectoryKey> keys, Ids ids, Span<std::int64_t> offsets) {
    if (offsets.size != keys.size + 1) {
        throw std::invalid_argument("offsets has " + text(offsets.size) + " values for " + text(keys.size) +
                                    " trajectories: give one more than there are trajectories");
    }
    if (offsets.data[0] != 0 || offsets.data[keys.size] != ids.size ||
        !std::is_sorted(offsets.data, offsets.data + offsets.size)) {
        throw std::invalid_argument("offsets run from " + text(offsets.data[0]) + " to " +
                                    text(offsets.data[keys.size]) + ": let them rise from 0 to " + text(ids.size) +
                                    ", the number of ids, without a fall");
    }
    check_ids(ids);
    for (std::int64_t i = 0; i < keys.size; ++i) find(keys.data[i]);
    for (std::int64_t i = 0; i < keys.size; ++i) {
        const std::int64_t begin = offsets.data[i];
        extend(find(keys.data[i]), Ids{ids.data + begin, offsets.data[i + 1] - begin});
    }
}

void PrefixTree::fork(TrajectoryKey parent, TrajectoryKey child, std::int64_t tokens) {
    const Trajectory from = find(parent);
    check_prefix(parent, from, tokens);
    check_new(child);
    Trajectory& trajectory = trajectories_[child] = Trajectory{from.last_full, allocate(), 0};
    ++blocks_[from.last_full].holders;
    std::copy_n(content(from.tail), from.length % block_tokens_, content(trajectory.tail));
    set_length(trajectory, from.length);
    shorten(trajectory, tokens);
}

void PrefixTree::truncate(TrajectoryKey key, std::int64_t tokens) {
    Trajectory& trajectory = find(key);
    check_prefix(key, trajectory, tokens);
    shorten(trajectory, tokens);
}

std::int64_t PrefixTree::release(TrajectoryKey key) {
    Trajectory& trajectory = find(key);
    const std::int64_t tail_blocks = partial(trajectory.length);
    const std::int64_t freed = tail_blocks + let_go(trajectory.last_full);
    partial_blocks_ -= tail_blocks;
    recycle(trajectory.tail);
    trajectories_.erase(key);
    return freed;
}

std::int64_t PrefixTree::match(Ids ids) const {
    check_ids(ids);
    BlockId block = kRoot;
    std::int64_t matched = 0;
    for (; ids.size - matched >= block_tokens_; matched += block_tokens_) {
        const std::int32_t* next = ids.data + matched;
        block = find_child(block, hash_child(block, next), next);
        if (block == kRoot) break;
    }
    return matched;
}

std::int64_t PrefixTree::blocks_needed(Ids ids) const { return blocks_of(ids.size) - match(ids) / block_tokens_; }

std::int64_t PrefixTree::growth(TrajectoryKey key, std::int64_t tokens) const {
    const std::int64_t filled = find(key).length % block_tokens_;
    if (tokens < 0) throw std::invalid_argument("growth by " + text(tokens) + " tokens: give 0 or more");
    const std::int64_t room = filled == 0 ? 0 : block_tokens_ - filled;
    return tokens <= room ? 0 : blocks_of(tokens - room);
}

std::int64_t PrefixTree::own_blocks(TrajectoryKey key) const {
    const Trajectory& trajectory = find(key);
    std::int64_t own = partial(trajectory.length);
    for (BlockId block = trajectory.last_full; block != kRoot && blocks_[block].holders == 1; ++own) {
        block = blocks_[block].parent;
    }
    return own;
}

std::vector<std::int32_t> PrefixTree::tokens(TrajectoryKey key) const {
    const Trajectory& trajectory = find(key);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(trajectory.length));
    const std::int64_t filled = trajectory.length % block_tokens_;
    auto end = ids.end() - filled;
    std::copy_n(content(trajectory.tail), filled, end);
    for (BlockId block = trajectory.last_full; block != kRoot; block = blocks_[block].parent) {
        end -= block_tokens_;
        std::copy_n(content(block), block_tokens_, end);
    }
    return ids;
}

std::size_t PrefixTree::memory_bytes() const {
    // The standard doesn't say what a hash map allocates; all implementations have a pointer a bucket, a link a node.
    const std::size_t map_bytes = trajectories_.bucket_count() * sizeof(void*) +
                                  trajectories_.size() * (sizeof(*trajectories_.begin()) + sizeof(void*));
    return sizeof(*this) + map_bytes + blocks_.capacity() * sizeof(Block) +
           contents_.capacity() * sizeof(std::int32_t) + buckets_.capacity() * sizeof(BlockId);
}

// Checks --------------------------------------------------------------------------------------------------------------

const PrefixTree::Trajectory& PrefixTree::find(TrajectoryKey key) const {
    const auto found = trajectories_.find(key);
    if (found == trajectories_.end()) {
        throw UnknownTrajectory("trajectory " + text(key) + " is not among the " + text(live()) +
                                " live ones: insert or fork it first");
    }
    return found->second;
}

PrefixTree::Trajectory& PrefixTree::find(TrajectoryKey key) {
    return const_cast<Trajectory&>(static_cast<const PrefixTree*>(this)->find(key));
}

void PrefixTree::check_new(TrajectoryKey key) const {
    if (contains(key)) {
        throw LiveTrajectory("trajectory " + text(key) + " is live already: release it first, or use another key");
    }
}

void PrefixTree::check_ids(Ids ids) const {
    const auto end = ids.data + ids.size;
    const auto bad = std::find_if(ids.data, end, [](std::int32_t id) { return id < 0; });
    if (bad != end) {
        throw std::invalid_argument("token id " + text(*bad) + " at position " + text(bad - ids.data) +
                                    ": ids are 0 or more");
    }
}

void PrefixTree::check_prefix(TrajectoryKey key, const Trajectory& trajectory, std::int64_t tokens) const {
    if (tokens < 0 || tokens > trajectory.length) {
        throw std::invalid_argument("the first " + text(tokens) + " tokens of trajectory " + text(key) +
                                    ": it has " + text(trajectory.length) + ", give 0 to that many");
    }
}

// A trajectory's end --------------------------------------------------------------------------------------------------

void PrefixTree::set_length(Trajectory& trajectory, std::int64_t length) {
    partial_blocks_ += static_cast<int>(partial(length)) - static_cast<int>(partial(trajectory.length));
    trajectory.length = length;
}

std::int64_t PrefixTree::extend(Trajectory& trajectory, Ids ids) {
    std::int64_t resident = 0;
    while (ids.size > 0) {
        const std::int64_t filled = trajectory.length % block_tokens_;
        const std::int64_t taken = std::min(block_tokens_ - filled, ids.size);
        std::copy_n(ids.data, taken, content(trajectory.tail) + filled);
        set_length(trajectory, trajectory.length + taken);
        ids = Ids{ids.data + taken, ids.size - taken};
        if (filled + taken == block_tokens_ && seal_tail(trajectory)) resident += block_tokens_;
    }
    return resident;
}

bool PrefixTree::seal_tail(Trajectory& trajectory) {
    const BlockId parent = trajectory.last_full;
    const std::uint32_t hash = hash_child(parent, content(trajectory.tail));
    const BlockId resident = find_child(parent, hash, content(trajectory.tail));
    if (resident != kRoot) {
        ++blocks_[resident].holders;
        --blocks_[parent].holders;  // never to 0: `resident` is its child
        trajectory.last_full = resident;
        return true;
    }
    const BlockId next_tail = allocate();
    link(trajectory.tail, parent, hash);  // the new child takes the trajectory's place among the parent's holders
    trajectory.last_full = trajectory.tail;
    trajectory.tail = next_tail;
    return false;
}

void PrefixTree::shorten(Trajectory& trajectory, std::int64_t tokens) {
    BlockId last_kept = trajectory.last_full;
    BlockId first_dropped = kRoot;
    for (std::int64_t n = trajectory.length / block_tokens_; n > tokens / block_tokens_; --n) {
        first_dropped = last_kept;
        last_kept = blocks_[last_kept].parent;
    }
    if (first_dropped != kRoot) {
        std::copy_n(content(first_dropped), tokens % block_tokens_, content(trajectory.tail));
        ++blocks_[last_kept].holders;
        let_go(trajectory.last_full);
        trajectory.last_full = last_kept;
    }
    set_length(trajectory, tokens);
}

// Blocks --------------------------------------------------------------------------------------------------------------

std::uint32_t PrefixTree::hash_child(BlockId parent, const std::int32_t* ids) const {
    std::uint64_t hash = (std::uint64_t{parent} + 1) * 0x9E3779B97F4A7C15u;
    for (std::int64_t i = 0; i < block_tokens_; ++i) {
        hash = (hash ^ static_cast<std::uint32_t>(ids[i])) * 0xD6E8FEB86659FD93u;
        hash ^= hash >> 32;
    }
    return static_cast<std::uint32_t>(hash);
}

PrefixTree::BlockId PrefixTree::find_child(BlockId parent, std::uint32_t hash, const std::int32_t* ids) const {
    BlockId block = buckets_[hash & (buckets_.size() - 1)];
    while (block != kRoot) {
        const Block& candidate = blocks_[block];
        const bool same_place = candidate.hash == hash && candidate.parent == parent;
        if (same_place && std::equal(ids, ids + block_tokens_, content(block))) break;
        block = candidate.next;
    }
    return block;
}

void PrefixTree::link(BlockId block, BlockId parent, std::uint32_t hash) {
    BlockId& first = bucket(hash);
    blocks_[block] = Block{parent, first, hash, 1};
    first = block;
    ++full_blocks_;
}

void PrefixTree::unlink(BlockId block) {
    BlockId* at = &bucket(blocks_[block].hash);
    while (*at != block) at = &blocks_[*at].next;
    *at = blocks_[block].next;
    --full_blocks_;
}

PrefixTree::BlockId PrefixTree::allocate() {
    if (free_ != kRoot) {
        const BlockId block = free_;
        free_ = blocks_[block].next;
        return block;
    }
    if (blocks_.size() == kMaxBlocks) throw std::length_error("the prefix tree is full: it holds 2^32 - 1 blocks");
    if (blocks_.size() == buckets_.size()) grow_buckets();
    contents_.resize(contents_.size() + stride());
    blocks_.push_back(Block{kRoot, kRoot, 0, 0});
    return static_cast<BlockId>(blocks_.size() - 1);
}

void PrefixTree::recycle(BlockId block) {
    blocks_[block].next = free_;
    free_ = block;
}

void PrefixTree::grow_buckets() {
    std::vector<BlockId> old(buckets_.size() * 2, kRoot);
    old.swap(buckets_);
    for (BlockId block : old) {
        while (block != kRoot) {
            const BlockId next = blocks_[block].next;
            BlockId& first = bucket(blocks_[block].hash);
            blocks_[block].next = first;
            first = block;
            block = next;
        }
    }
}

std::int64_t PrefixTree::let_go(BlockId block) {
    std::int64_t freed = 0;
    while (--blocks_[block].holders == 0 && block != kRoot) {
        const BlockId parent = blocks_[block].parent;
        unlink(block);
        recycle(block);
        ++freed;
        block = parent;
    }
    return freed;
}

}  // namespace llenvs
