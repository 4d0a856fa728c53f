// Python's view of the library: names, argument types, docstrings and errors. No logic.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <memory>
#include <optional>
#include <vector>

#include "llenvs/prefix_tree.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using llenvs::PrefixTree;

namespace {

template <typename T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IdArray = Array<std::int32_t>;
using LongArray = Array<std::int64_t>;

template <typename T>
llenvs::Span<T> view(const Array<T>& array) {
    return {array.data(), static_cast<std::int64_t>(array.size())};
}

nb::ndarray<nb::numpy, std::int32_t, nb::ndim<1>> tokens(const PrefixTree& tree, std::int64_t trajectory) {
    auto ids = std::make_unique<std::vector<std::int32_t>>(tree.tokens(trajectory));
    const std::size_t size = ids->size();
    std::int32_t* data = ids->data();
    nb::capsule owner(ids.release(), [](void* p) noexcept { delete static_cast<std::vector<std::int32_t>*>(p); });
    return {data, {size}, owner};
}

void bind_errors(nb::module_& m) {
    // The package's own base keeps a KeyError's message out of quotes.
    const nb::object base = nb::module_::import_("llenvs_fast.core.errors").attr("LLEnvsError");
    const nb::tuple bases = nb::make_tuple(base, nb::borrow(PyExc_KeyError));
    nb::exception<llenvs::UnknownTrajectory>(m, "UnknownTrajectoryError", bases).attr("__doc__") =
        "No live trajectory has that key.";
    nb::exception<llenvs::LiveTrajectory>(m, "LiveTrajectoryError", bases).attr("__doc__") =
        "A trajectory of that key is live already.";
}

void bind_prefix_tree(nb::module_& m) {
    nb::class_<PrefixTree>(m, "PrefixTree",
                           "Which KV blocks the live trajectories share.\n\n"
                           "Keys are int64. Ids are int32 arrays, nothing else. Not thread-safe by itself: the\n"
                           "interpreter lock is held during each call, which makes one call at a time safe.")
        .def(nb::init<std::int64_t>(), "block_tokens"_a)
        .def(
            "insert", [](PrefixTree& t, std::int64_t key, const IdArray& ids) { return t.insert(key, view(ids)); },
            "trajectory"_a, "ids"_a.noconvert(), "Add a trajectory; return how many of its first tokens were resident.")
        .def(
            "append", [](PrefixTree& t, std::int64_t key, const IdArray& ids) { t.append(key, view(ids)); },
            "trajectory"_a, "ids"_a.noconvert(), "Let `ids` follow.")
        .def(
            "append_many",
            [](PrefixTree& t, const LongArray& keys, const IdArray& ids, const LongArray& offsets) {
                t.append_many(view(keys), view(ids), view(offsets));
            },
            "trajectories"_a.noconvert(), "ids"_a.noconvert(), "offsets"_a.noconvert(),
            "Append ids[offsets[i]:offsets[i + 1]] to trajectories[i], for every i in order.")
        .def(
            "fork",
            [](PrefixTree& t, std::int64_t parent, std::int64_t child, std::optional<std::int64_t> tokens) {
                t.fork(parent, child, tokens ? *tokens : t.length(parent));
            },
            "parent"_a, "child"_a, "tokens"_a = nb::none(),
            "Add `child` with the parent's first `tokens` ids (None: all).")
        .def("truncate", &PrefixTree::truncate, "trajectory"_a, "tokens"_a, "Drop the ids after the first `tokens`.")
        .def("release", &PrefixTree::release, "trajectory"_a,
             "Remove a trajectory; return how many blocks nobody holds any more.")
        .def(
            "match", [](const PrefixTree& t, const IdArray& ids) { return t.match(view(ids)); }, "ids"_a.noconvert(),
            "How many of the first `ids` are resident: a multiple of block_tokens.")
        .def(
            "blocks_needed", [](const PrefixTree& t, const IdArray& ids) { return t.blocks_needed(view(ids)); },
            "ids"_a.noconvert(), "How many blocks inserting `ids` would add.")
        .def("growth", &PrefixTree::growth, "trajectory"_a, "tokens"_a,
             "How many blocks appending `tokens` ids that nobody else has would add.")
        .def("blocks", &PrefixTree::blocks, "trajectory"_a, "All blocks of a trajectory, its partial one included.")
        .def("own_blocks", &PrefixTree::own_blocks, "trajectory"_a, "How many blocks `release` would free.")
        .def("length", &PrefixTree::length, "trajectory"_a, "Tokens of a trajectory.")
        .def("tokens", &tokens, "trajectory"_a, "A copy of a trajectory's ids.")
        .def("__contains__", &PrefixTree::contains, "trajectory"_a)
        .def("__len__", &PrefixTree::live)
        .def_prop_ro("block_tokens", &PrefixTree::block_tokens, "Tokens of a full block.")
        .def_prop_ro("live", &PrefixTree::live, "Trajectories in the tree.")
        .def_prop_ro("distinct_blocks", &PrefixTree::distinct_blocks,
                     "Blocks of all live trajectories, a shared one counted once.")
        .def_prop_ro("memory_bytes", &PrefixTree::memory_bytes,
                     "Bytes allocated: follows the most blocks that were ever live at once.");
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "The C++ part of llenvs_fast.tokens.";
    bind_errors(m);
    bind_prefix_tree(m);
}
