// bindings_pool.cpp: what Python sees of rank_pool.h.
#include <pybind11/stl.h>

#include "runtime/bindings.h"
#include "runtime/bindings_wait.h"
#include "runtime/rank_pool.h"

namespace py = pybind11;
using namespace py::literals;

namespace sgpu {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr std::size_t kBurstSeconds = 3;  // of text that may come at once
// No longer, so that the clock's nanoseconds can count it from now: "for ever" is also said by a
// large number.
constexpr std::chrono::duration<double> kLongest = std::chrono::hours(24 * 365 * 100);

Milliseconds to_ms(double seconds) {
    const std::chrono::duration<double> asked(seconds);
    return std::chrono::duration_cast<Milliseconds>(std::min(asked, kLongest));
}

std::optional<Milliseconds> to_ms(std::optional<double> seconds) {
    if (!seconds) return std::nullopt;
    return to_ms(*seconds);
}

py::list bytes_list(const std::vector<std::string>& frames) {
    py::list list;
    for (const auto& f : frames) list.append(py::bytes(f));
    return list;
}

const char* name_of(RankState state) {
    constexpr const char* kNames[] = {"running", "returned", "raised", "died"};
    return kNames[static_cast<std::size_t>(state)];
}

const char* name_of(EndCause cause) {
    constexpr const char* kNames[] = {"none", "failure", "stop", "deadline"};
    return kNames[static_cast<std::size_t>(cause)];
}

const char* name_of(Pressure pressure) {
    constexpr const char* kNames[] = {"none", "asked", "cut_if_stuck", "cut", "killed", "given_up"};
    return kNames[static_cast<std::size_t>(pressure)];
}

OutputMux::Options output_options(int world, const std::string& mode, const std::string& ranks,
                                  bool colour, std::size_t bytes_per_second,
                                  std::size_t shown_bytes) {
    // Ranks that start cold are a little out of step; no line waits longer than this.
    OutputMux::Options options{.world = world, .window = Milliseconds(100), .colour = colour};
    options.max_bytes = shown_bytes;
    options.bytes_per_second = bytes_per_second;
    options.burst = kBurstSeconds * bytes_per_second;
    if (mode == "all") options.mode = OutputMux::Mode::all;
    if (mode == "none") options.show = RankSet{};
    if (mode == "ranks") {
        const auto shown = RankSet::parse(ranks);
        if (!shown) throw py::value_error(shown.error().message);
        options.show = shown.value();
    }
    return options;
}

std::unique_ptr<RankPool> start_pool(std::string guard, std::vector<std::string> fork_server) {
    auto pool = [&] {
        const py::gil_scoped_release release;
        return RankPool::start({std::move(guard), std::move(fork_server)});
    }();
    if (!pool) throw_os_error(pool.error().os_errno, pool.error().message.c_str());
    return std::move(pool.value());
}

std::shared_ptr<CallTicket> begin_call(RankPool& pool,
                                       const std::vector<std::pair<int, ChildId>>& members,
                                       int world, const std::string& mode,
                                       const std::vector<py::bytes>& frames, int buffer,
                                       std::optional<double> timeout, double grace,
                                       const std::string& output, const std::string& output_ranks,
                                       bool colour, std::size_t bytes_per_second,
                                       std::size_t shown_bytes) {
    CallRequest request;
    request.buffer.reset(buffer);  // first: it is ours whatever is refused below
    for (const auto& [rank, child] : members) request.members.push_back({rank, child});
    request.world = world;
    request.mode = mode;
    request.frames.assign(frames.begin(), frames.end());
    request.limits.timeout = to_ms(timeout);
    request.limits.failure_grace = request.limits.stop_grace = to_ms(grace);
    request.output =
        output_options(world, output, output_ranks, colour, bytes_per_second, shown_bytes);
    const py::gil_scoped_release release;
    return pool.begin_call(std::move(request));
}

py::dict memory_end(const MemoryEnd& end) {
    constexpr const char* kNames[] = {"unknown", "no", "likely", "yes"};
    py::dict d;
    d["verdict"] = kNames[static_cast<std::size_t>(end.verdict)];
    d["limit"] = end.limit;
    d["peak"] = end.peak;
    return d;
}

// Item by item: the constructor of a dict from keywords takes three times as long, for each rank.
py::dict outcome(RankOutcome& o) {
    py::dict d;
    d["rank"] = o.rank;
    d["child"] = o.child;
    d["pid"] = o.pid;
    d["state"] = name_of(o.state);
    d["consequence"] = o.consequence;
    d["status"] = o.status;
    d["exit_known"] = o.exit_known;
    d["came_up"] = o.came_up;
    d["program"] = o.program;
    d["seconds"] = o.seconds;
    d["began"] = o.began;
    d["startup"] = o.startup;
    d["memory"] = memory_end(o.memory);
    d["frames"] = bytes_list(o.frames);
    d["fd"] = o.buffer.release();
    return d;
}

py::list outcomes(CallTicket& ticket) {
    py::list list;
    for (RankOutcome& o : ticket.take_outcomes()) list.append(outcome(o));
    return list;
}

py::dict dead_children(const RankPool& pool) {
    py::dict all;
    for (const auto& [id, dead] : pool.dead_children())
        all[py::int_(id)] =
            py::dict("pid"_a = dead.pid, "status"_a = dead.status, "exit_known"_a = dead.exit_known,
                     "program"_a = dead.program, "memory"_a = memory_end(dead.memory));
    return all;
}

py::dict log_losses(const RankPool& pool) {
    py::dict all;
    for (const auto& [call, ranks] : pool.log_losses()) {
        py::dict losses;
        for (const auto& [rank, loss] : ranks)
            losses[py::int_(rank)] = py::make_tuple(loss.refused, loss.error, loss.rotated);
        all[py::int_(call)] = std::move(losses);
    }
    return all;
}

py::dict view(const CallTicket& ticket) {
    const CallView v = ticket.view();
    py::list states;
    for (const RankState s : v.states) states.append(name_of(s));
    py::list live;
    for (const LiveLine& line : v.live)
        live.append(py::make_tuple(line.ranks.to_string(), line.text));
    py::list newest;
    for (const std::string& line : v.unshown.newest) newest.append(py::str(line));
    return py::dict("states"_a = states, "live"_a = live, "unshown"_a = v.unshown.lines,
                    "newest"_a = newest, "cause"_a = name_of(v.cause),
                    "pressure"_a = name_of(v.pressure), "stacks"_a = v.stacks);
}

py::list rank_list(const RankSet& ranks) {
    py::list list;
    for (const Rank rank : ranks) list.append(rank);
    return list;
}

py::list take_output(RankPool& pool) {
    auto events = [&] {
        const py::gil_scoped_release release;
        return pool.take_output();
    }();
    py::list list;
    for (OutputEvent& e : events)
        list.append(py::make_tuple(e.call, rank_list(e.ranks), e.type, py::bytes(e.content)));
    return list;
}

void bind_tickets(py::module_& m) {
    py::class_<CallTicket, std::shared_ptr<CallTicket>>(m, "CallTicket")
        .def_property_readonly("id", &CallTicket::id)
        .def_property_readonly("done", &CallTicket::done)
        .def(
            "wait",
            [](const CallTicket& t, std::optional<double> seconds) {
                return wait_for_end(t, to_ms(seconds));
            },
            "seconds"_a = py::none(),
            "True once all ranks have ended, False after `seconds`. KeyboardInterrupt leaves the "
            "call running.")
        .def("outcomes", &outcomes, "Per rank how it ended, once; descriptors are the caller's.")
        .def("view", &view, "The call as it stands: states, progress lines, pressure, stacks.");
    py::class_<QueryTicket, std::shared_ptr<QueryTicket>>(m, "QueryTicket")
        .def(
            "wait",
            [](const QueryTicket& t, std::optional<double> seconds) {
                return wait_for_end(t, to_ms(seconds));
            },
            "seconds"_a = py::none())
        .def("answers", &QueryTicket::answers, "Child to its answer; None if it ended before.");
}

}  // namespace

void bind_pool(py::module_& m) {
    bind_tickets(m);
    py::enum_<Imports>(m, "Imports", "What a child waits for of the fork server's imports.")
        .value("torch", Imports::torch)
        .value("tracking", Imports::tracking)
        .value("all", Imports::all);
    const auto unlocked = py::call_guard<py::gil_scoped_release>();
    // Destroying a pool waits for its guard, so it must not hold the GIL.
    struct Unlocked {
        void operator()(RankPool* pool) const {
            const py::gil_scoped_release release;
            delete pool;
        }
    };
    py::class_<RankPool, std::unique_ptr<RankPool, Unlocked>>(m, "RankPool")
        .def(py::init([](std::string guard, std::vector<std::string> fork_server) {
                 return std::unique_ptr<RankPool, Unlocked>(
                     start_pool(std::move(guard), std::move(fork_server)).release());
             }),
             "guard"_a, "fork_server"_a)
        .def("end", &RankPool::end, unlocked,
             "Ends all processes and waits until they are gone; calls under way end as lost.")
        .def("set_spares", &RankPool::set_spares, unlocked)
        .def("take", &RankPool::take, "count"_a, "needed"_a = Imports::all, unlocked)
        .def(
            "warm",
            [](RankPool& p, int devices, const std::optional<std::string>& visible, double idle) {
                p.warm(devices, visible, std::chrono::floor<std::chrono::seconds>(to_ms(idle)));
            },
            "devices"_a, "visible"_a, "idle"_a, unlocked)
        .def("cool", &RankPool::cool, unlocked)
        .def("warm_spares", &RankPool::warm_spares)
        .def("retire", &RankPool::retire, unlocked)
        .def("kill", &RankPool::kill, unlocked)
        .def("begin_call", &begin_call, "members"_a, "world"_a, "mode"_a, "frames"_a, "fd"_a,
             "timeout"_a, "grace"_a, "output"_a, "output_ranks"_a, "colour"_a,
             "bytes_per_second"_a = 0, "shown_bytes"_a = OutputMux::Options{}.max_bytes,
             "Starts a call; takes `fd` over. `timeout` and `grace` in seconds.")
        .def("stop", &RankPool::stop, unlocked)
        .def("cut_short", &RankPool::cut_short, unlocked)
        .def(
            "start_service",
            [](RankPool& p, const std::string& entry, const std::string& config, double linger,
               Imports needed) { return p.start_service(entry, config, to_ms(linger), needed); },
            unlocked)
        .def(
            "whereabouts",
            [](RankPool& p, const std::vector<ChildId>& children, bool stack) {
                return p.whereabouts(
                    children, stack ? RankPool::Ask::stack_too : RankPool::Ask::collectives_only);
            },
            "children"_a, py::kw_only(), "stack"_a, unlocked)
        .def("fork_server_ready", &RankPool::fork_server_ready, unlocked)
        .def("take_output", &take_output,
             "Output since the last time: (call, ranks, type, content); no ranks for text.")
        .def("pids",
             [](const RankPool& p) {
                 const auto pids = p.pids();
                 return py::dict("guard"_a = pids.guard, "fork_server"_a = pids.fork_server,
                                 "children"_a = pids.children);
             })
        .def("dead_children", &dead_children,
             "Children that died unasked, each with `pid`, `status`, `exit_known`, `program`, "
             "`memory`.")
        .def("log_path", &RankPool::log_path)
        .def("log_losses", &log_losses,
             "What logs of ended calls lack, by call and rank: bytes that the system refused, its "
             "errno, bytes that made room.")
        .def_property_readonly(
            "output_fd", &RankPool::output_fd,
            "Readable when there is output to take, or the pool has broken. The pool's own.")
        .def_property_readonly("folder", &RankPool::folder)
        .def_property_readonly("trouble", &RankPool::trouble)
        .def_property_readonly("broken", &RankPool::broken);
}

}  // namespace sgpu
