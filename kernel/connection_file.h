// connection_file.h: the file by which a Jupyter client tells a kernel where to listen.
#pragma once

#include <string>
#include <zmq.hpp>

namespace sgpu {

struct ConnectionFile {
    std::string transport = "tcp";
    std::string ip = "127.0.0.1";
    int shell_port = 0;
    int control_port = 0;
    int stdin_port = 0;
    int iopub_port = 0;
    int heartbeat_port = 0;
    std::string signature_scheme = "hmac-sha256";
    std::string key;
    std::string curve_secretkey;  // Z85; empty: no encryption

    // Errors: throws std::runtime_error that names the file, if it cannot be read or understood.
    static ConnectionFile load(const std::string& path);

    // Makes `socket` listen on `port`, encrypted if the file has a key for that.
    // Errors: throws zmq::error_t if the port is taken, or libzmq cannot encrypt.
    void bind(zmq::socket_t& socket, int port) const;
};

}  // namespace sgpu
