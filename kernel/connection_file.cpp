#include "kernel/connection_file.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace sgpu {

ConnectionFile ConnectionFile::load(const std::string& path) {
    try {
        std::ifstream stream(path);
        if (!stream) throw std::runtime_error("it cannot be opened");
        const nlohmann::json json = nlohmann::json::parse(stream);
        ConnectionFile file;
        file.transport = json.value("transport", file.transport);
        file.ip = json.value("ip", file.ip);
        file.shell_port = json.at("shell_port").get<int>();
        file.control_port = json.at("control_port").get<int>();
        file.stdin_port = json.at("stdin_port").get<int>();
        file.iopub_port = json.at("iopub_port").get<int>();
        file.heartbeat_port = json.at("hb_port").get<int>();
        file.signature_scheme = json.value("signature_scheme", file.signature_scheme);
        file.key = json.value("key", file.key);
        file.curve_secretkey = json.value("curve_secretkey", file.curve_secretkey);
        return file;
    } catch (const std::exception& error) {
        throw std::runtime_error("connection file " + path + ": " + error.what());
    }
}

void ConnectionFile::bind(zmq::socket_t& socket, int port) const {
    if (!curve_secretkey.empty()) {
        socket.set(zmq::sockopt::curve_server, true);
        socket.set(zmq::sockopt::curve_secretkey, curve_secretkey);
    }
    socket.bind(transport + "://" + ip + (transport == "ipc" ? "-" : ":") + std::to_string(port));
}

}  // namespace sgpu
